// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/health"
)

func zSources(set func(int)) health.Sources {
	s := sources()
	s.Flags = func() map[string]string {
		return map[string]string{"proxy-mode": "nftables", "cluster-cidr": "10.0.0.0/8", "kubeconfig": "a\x1b[31m\nb"}
	}
	s.Version, s.Release, s.Profile, s.Verbosity = "v0.9.0", "1.37.2", true, set
	return s
}

func request(s health.Sources, method, path, accept, from, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Host, req.RemoteAddr = "localhost", from
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	health.Pages(s).ServeHTTP(w, req)
	return w
}

const here = "127.0.0.1:40000"

func TestFlagz(t *testing.T) {
	s := zSources(nil)
	const want = "\nkube-proxy flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n" +
		"cluster-cidr=10.0.0.0/8\nkubeconfig=a\\x1b[31m\\x0ab\nproxy-mode=nftables\n"
	for _, accept := range []string{"", "*/*", "text/plain", "text/html, text/*;q=0.5"} {
		if w := request(s, "GET", "/flagz", accept, here, ""); w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%q: %d %q", accept, w.Code, w.Body)
		}
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		w := request(s, "GET", "/flagz", "application/json;v="+version+";g=config.k8s.io;as=Flagz", here, "")
		var doc struct {
			Kind, APIVersion string
			Metadata         struct{ Name string }
			Flags            map[string]string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.Kind != "Flagz" || doc.APIVersion != "config.k8s.io/"+version ||
			doc.Metadata.Name != "kube-proxy" || doc.Flags["proxy-mode"] != "nftables" {
			t.Errorf("%v: %d %s", err, w.Code, w.Body)
		}
	}
	if w := request(s, "GET", "/flagz", "application/json", here, ""); w.Code != http.StatusNotAcceptable {
		t.Errorf("JSON of no version: %d", w.Code)
	}
	if w := request(s, "GET", "/flagz", "", "192.0.2.7:1", ""); w.Code != http.StatusForbidden {
		t.Errorf("from another machine: %d", w.Code)
	}
}

func TestStatusz(t *testing.T) {
	s := zSources(nil)
	text := request(s, "GET", "/statusz", "", "192.0.2.7:1", "").Body.String()
	for _, part := range []string{
		"\nkube-proxy statusz\n", "\nUp: 0 hr 00 min 00 sec\n", "\nGo version: " + runtime.Version() + "\n", "\nBinary version: 1.37.2\n",
		"\nTandem version: v0.9.0\n", "\nPaths: /configz /debug /flagz /healthz /livez /metrics /proxyMode /status /statusz\n",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	w := request(s, "GET", "/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", here, "")
	var doc struct {
		Kind, BinaryVersion, StartTime string
		Paths                          []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.Kind != "Statusz" || doc.BinaryVersion != "1.37.2" || doc.StartTime == "" || len(doc.Paths) == 0 {
		t.Errorf("%v: %s", err, w.Body)
	}
}

func TestVerbosity(t *testing.T) {
	level := -1
	s := zSources(func(v int) { level = v })
	for _, c := range []struct {
		method, from, body string
		code, level        int
	}{
		{"GET", here, "", http.StatusNotAcceptable, -1},
		{"PUT", "192.0.2.7:1", "4", http.StatusForbidden, -1},
		{"PUT", here, "x", http.StatusBadRequest, -1},
		{"PUT", here, strings.Repeat("1", 5000), http.StatusBadRequest, -1},
		{"PUT", here, "4", http.StatusOK, 4},
	} {
		w := request(s, c.method, "/debug/flags/v", "", c.from, c.body)
		if w.Code != c.code || level != c.level {
			t.Errorf("%s %.10q from %s: %d, level %d", c.method, c.body, c.from, w.Code, level)
		}
	}
	s.Profile = false
	if w := request(s, "PUT", "/debug/flags/v", "", here, "4"); w.Code != http.StatusNotFound {
		t.Errorf("without profiling: %d", w.Code)
	}
}

// The verbosity can be set where the pages are served, and nothing else can be.
func TestVerbosityThroughTheServer(t *testing.T) {
	level := make(chan int, 1)
	addr := serve(t, health.Pages(zSources(func(v int) { level <- v })).ServeHTTP)
	if code, _, body, err := get("PUT", "http://"+addr+"/debug/flags/v", strings.NewReader("4")); err != nil || code != 200 || <-level != 4 {
		t.Errorf("%d %s, %v", code, body, err)
	}
	if code, _, _, err := get("PUT", "http://"+addr+"/debug/flags/v", strings.NewReader(strings.Repeat("1", 1<<20))); err == nil && code != 400 {
		t.Errorf("a large body: %d", code)
	}
	if code, _, _, err := get("PUT", "http://"+addr+"/status", strings.NewReader("4")); err != nil || code != 405 {
		t.Errorf("another page: %d, %v", code, err)
	}
}
