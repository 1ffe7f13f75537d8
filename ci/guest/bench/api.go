package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// api stands in for an API server: lists and watches of the few kinds that a
// proxy reads, in JSON.
type api struct {
	mu      sync.Mutex
	version int
	items   map[string][]map[string]any // by resource
	streams map[string][]chan []byte
}

var kinds = map[string]string{
	"services": "v1 Service", "nodes": "v1 Node", "endpointslices": "discovery.k8s.io/v1 EndpointSlice",
	"servicecidrs": "networking.k8s.io/v1 ServiceCIDR",
}

func newAPI() *api {
	return &api{version: 1, items: map[string][]map[string]any{}, streams: map[string][]chan []byte{}}
}

// object completes an object with its kind and a new version.
func (a *api) object(resource string, o map[string]any) map[string]any {
	version, kind, _ := strings.Cut(kinds[resource], " ")
	o["apiVersion"], o["kind"] = version, kind
	a.version++
	o["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(a.version)
	return o
}

// modify replaces object i and tells those who watch.
func (a *api) modify(resource string, i int, o map[string]any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	o = a.object(resource, o)
	a.items[resource][i] = o
	event, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": o})
	for _, s := range a.streams[resource] {
		s <- append(event, '\n')
	}
	return err
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, query := path[len(path)-1], r.URL.Query()
	switch {
	case len(path) > 1 && path[len(path)-2] == "nodes":
		_ = json.NewEncoder(w).Encode(a.items["nodes"][0])
	case kinds[resource] == "" || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	case query.Get("sendInitialEvents") != "": // an older API server: list first
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
	case query.Get("watch") != "":
		a.watch(w, r, resource)
	default:
		a.list(w, resource)
	}
}

func (a *api) list(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, kind, _ := strings.Cut(kinds[resource], " ")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": version, "kind": kind + "List", "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": a.items[resource],
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	events := make(chan []byte, 64)
	a.mu.Lock()
	a.streams[resource] = append(a.streams[resource], events)
	a.mu.Unlock()
	flush := w.(http.Flusher)
	flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			a.mu.Lock()
			defer a.mu.Unlock()
			all := a.streams[resource]
			for i, s := range all {
				if s == events {
					a.streams[resource] = append(all[:i:i], all[i+1:]...)
				}
			}
			return
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
			flush.Flush()
		}
	}
}
