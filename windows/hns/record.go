// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/redact"
)

// A recording has a line for each call of HNS with its answer, in the order of the answers. All
// calls of a proxy pass the recorder:
//
//	Driver ── calls ── recorder ── hcnHNS            ──▶ {"call":"CreateBalancer","request":…,"answer":…,"us":1204}
//	                      │
//	                      └─▶ FILE ── hnsemu.ReadRecording ── hnsemu.Player: answers a proxy as recorded
//	                                                      └── hnsemu.Replay: compares the emulator's answers
//
// Names, addresses and ids are replaced (package redact). Kept are the types of networks and
// policies, versions, flags, ports, states and codes; the numbers and booleans in policies;
// the names that Tandem gives, with the address replaced, and those that scripts of CNI
// plug-ins give.

// RecordingVersion is the version of the recording's format, in its first line.
const RecordingVersion = "tandem.io/hns-recording/v1"

// MaxRecording bounds a recording in bytes: the file that is written, and one that is read.
const MaxRecording = 64 << 20

// Call is a call in a recording.
type Call struct {
	Name    string          `json:"call"`              // the method of HNS
	ID      string          `json:"id,omitempty"`      // of the object, or of the network whose endpoints are listed
	Request json.RawMessage `json:"request,omitempty"` // the object to create or modify to
	Answer  json.RawMessage `json:"answer,omitempty"`  // none if the call failed
	Failed  *Refusal        `json:"failed,omitempty"`
	Micros  int64           `json:"us"` // how long it took
}

// Refusal is an error in a recording.
type Refusal struct {
	Function string `json:"function,omitempty"` // such as "HcnCreateLoadBalancer"; empty for an error that is not of HNS
	Code     string `json:"code,omitempty"`     // such as "0x803b0013"
}

// refusalOf returns an error without its text, which may contain anything.
func refusalOf(err error) *Refusal {
	if e, ok := errors.AsType[*Error](err); ok {
		return &Refusal{e.Call, fmt.Sprintf("0x%x", uint32(e.Code))}
	}
	return &Refusal{}
}

// recorder is an HNS that records its calls.
type recorder struct {
	hns HNS
	log *slog.Logger

	mu    sync.Mutex
	out   io.WriteCloser
	words words
	room  int // bytes that may still be written
	ended bool
}

// Record returns an HNS that writes its calls to out, redacted with a key. When
// MaxRecording bytes are written or writing fails, that is logged and the recording ends; calls continue.
// Close closes both.
func Record(h HNS, out io.WriteCloser, key []byte, log *slog.Logger) HNS {
	r := &recorder{hns: h, log: log, out: out, words: words{redact.New(key)}, room: MaxRecording}
	r.line(struct {
		APIVersion string `json:"apiVersion"`
	}{RecordingVersion})
	return r
}

// RecordIn is Record into a file, which is overwritten, with a random key that is not kept. It
// returns h itself if file is empty, or cannot be created, which is logged.
func RecordIn(file string, h HNS, log *slog.Logger) HNS {
	if file == "" {
		return h
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		log.Error("recording HNS calls failed", "err", err)
		return h
	}
	log.Info("recording HNS calls", "file", file)
	return Record(h, out, []byte(rand.Text()), log)
}

// line writes a line. The caller holds the lock, or is the only user.
func (r *recorder) line(v any) {
	b, err := json.Marshal(v)
	b = append(b, '\n')
	switch {
	case r.ended:
		return
	case err != nil:
	case len(b) > r.room:
		err = fmt.Errorf("the recording has reached its limit of %d MiB", MaxRecording>>20)
	default:
		r.room -= len(b)
		_, err = r.out.Write(b)
	}
	if err != nil {
		r.ended = true
		r.log.Warn("recording of HNS calls ended", "err", err)
	}
}

// recorded makes a call and records it.
func recorded[T any](r *recorder, name, id string, request any, f func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := f()
	c := Call{Name: name, Micros: time.Since(began).Microseconds()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return answer, err
	}
	c.ID, c.Request = r.words.id(id), r.words.object(request)
	if err != nil {
		c.Failed = refusalOf(err)
	} else {
		c.Answer = r.words.object(answer)
	}
	r.line(c)
	return answer, err
}

// deleted is recorded for a deletion, which has no answer.
func deleted(r *recorder, name, id string, f func(string) error) error {
	_, err := recorded(r, name, id, nil, func() (any, error) { return nil, f(id) })
	return err
}

func (r *recorder) Version() (Version, error) {
	return recorded(r, "Version", "", nil, r.hns.Version)
}

func (r *recorder) Networks() ([]Network, error) {
	return recorded(r, "Networks", "", nil, r.hns.Networks)
}

func (r *recorder) EndpointIDs(network string) ([]string, error) {
	return recorded(r, "EndpointIDs", network, nil, func() ([]string, error) { return r.hns.EndpointIDs(network) })
}

func (r *recorder) Endpoint(id string) (Endpoint, error) {
	return recorded(r, "Endpoint", id, nil, func() (Endpoint, error) { return r.hns.Endpoint(id) })
}

func (r *recorder) CreateEndpoint(e Endpoint) (Endpoint, error) {
	return recorded(r, "CreateEndpoint", "", e, func() (Endpoint, error) { return r.hns.CreateEndpoint(e) })
}

func (r *recorder) DeleteEndpoint(id string) error {
	return deleted(r, "DeleteEndpoint", id, r.hns.DeleteEndpoint)
}

func (r *recorder) BalancerIDs() ([]string, error) {
	return recorded(r, "BalancerIDs", "", nil, r.hns.BalancerIDs)
}

func (r *recorder) Balancer(id string) (LoadBalancer, error) {
	return recorded(r, "Balancer", id, nil, func() (LoadBalancer, error) { return r.hns.Balancer(id) })
}

func (r *recorder) CreateBalancer(lb LoadBalancer) (LoadBalancer, error) {
	return recorded(r, "CreateBalancer", "", lb, func() (LoadBalancer, error) { return r.hns.CreateBalancer(lb) })
}

func (r *recorder) ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) {
	return recorded(r, "ModifyBalancer", id, to, func() (LoadBalancer, error) { return r.hns.ModifyBalancer(id, to) })
}

func (r *recorder) DeleteBalancer(id string) error {
	return deleted(r, "DeleteBalancer", id, r.hns.DeleteBalancer)
}

func (r *recorder) Close() error {
	err := r.hns.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended = true; r.out != nil {
		err, r.out = errors.Join(err, r.out.Close()), nil
	}
	return err
}

// words replaces a node's names, addresses and ids in a recording.
type words struct{ *redact.Redactor }

// object returns an object, or a list, as redacted JSON. A type that is not known here is
// left out.
func (w words) object(v any) json.RawMessage {
	switch x := v.(type) {
	case Version:
	case []string:
		v = each(x, w.id)
	case []Network:
		v = each(x, w.network)
	case Endpoint:
		v = w.endpoint(x)
	case LoadBalancer:
		v = w.balancer(x)
	default:
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil { // policy settings that are not JSON
		return nil
	}
	return b
}

func each[T any](all []T, f func(T) T) []T {
	out := make([]T, 0, len(all))
	for _, x := range all {
		out = append(out, f(x))
	}
	return out
}

func (w words) network(n Network) Network {
	n.ID, n.Name, n.Policies, n.Ipams = w.id(n.ID), w.name(n.Name), each(n.Policies, w.policy), nil
	return n
}

func (w words) endpoint(e Endpoint) Endpoint {
	if as := addresses(e); len(as) > 0 && strings.EqualFold(e.MacAddress, mac(as[0])) {
		e.MacAddress = mac(w.Address(as[0]))
	} else {
		e.MacAddress = w.mac(e.MacAddress)
	}
	e.ID, e.HostComputeNetwork, e.Name = w.id(e.ID), w.id(e.HostComputeNetwork), w.name(e.Name)
	e.Policies = each(e.Policies, w.policy)
	e.IpConfigurations = each(e.IpConfigurations, func(c IpConfig) IpConfig {
		c.IpAddress = w.Text(c.IpAddress)
		return c
	})
	return e
}

func (w words) balancer(lb LoadBalancer) LoadBalancer {
	lb.ID, lb.HostComputeEndpoints = w.id(lb.ID), each(lb.HostComputeEndpoints, w.id)
	lb.SourceVIP, lb.FrontendVIPs = w.Text(lb.SourceVIP), each(lb.FrontendVIPs, w.Text)
	return lb
}

// policy replaces the strings in a policy's settings.
func (w words) policy(p Policy) Policy {
	var settings any
	if json.Unmarshal(p.Settings, &settings) != nil {
		p.Settings = nil
		return p
	}
	p.Settings, _ = json.Marshal(w.setting(settings)) // it was read from JSON
	return p
}

func (w words) setting(v any) any {
	switch x := v.(type) {
	case string:
		return strings.Join(each(strings.Split(x, ","), w.name), ",")
	case []any:
		return each(x, w.setting)
	case map[string]any:
		for name := range x {
			x[name] = w.setting(x[name])
		}
	}
	return v
}

// name replaces a name. Names of Tandem's endpoints keep their prefix, well-known ones stay.
func (w words) name(s string) string {
	if slices.Contains(sourceNames[:], s) || slices.Contains(forSwitch[:], s) {
		return s
	}
	for _, prefix := range [...]string{remotePrefix, vipPrefix} {
		if a, err := netip.ParseAddr(strings.TrimPrefix(s, prefix)); err == nil && strings.HasPrefix(s, prefix) {
			return prefix + w.Address(a).String()
		}
	}
	return w.Text(s)
}

// id replaces a GUID by another one. HNS ignores the case of GUIDs.
func (w words) id(s string) string {
	if s == "" {
		return ""
	}
	h := hex.EncodeToString(w.Sum("id", []byte(strings.ToLower(s)))[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// mac replaces a MAC address by a locally administered one.
func (w words) mac(s string) string {
	if s == "" {
		return ""
	}
	plain := strings.ToLower(strings.ReplaceAll(s, ":", "-"))
	b := w.Sum("mac", []byte(plain))
	return fmt.Sprintf("02-%02x-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3], b[4])
}
