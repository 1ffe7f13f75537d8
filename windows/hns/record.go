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

// A recording is what HNS was asked and what it answered, a line each, in the order of the
// answers. All calls of a proxy pass here:
//
//	Driver ── calls ── recorder ── hcnHNS            ──▶ {"call":"CreateBalancer","request":…,"answer":…,"us":1204}
//	                      │
//	                      └─▶ FILE ── hnsemu.ReadRecording ── hnsemu.Player: what does the proxy ask?
//	                                                      └── hnsemu.Replay: what does the emulator answer?
//
// Names, addresses and ids are replaced (package redact). Kept are the types of networks and
// policies, versions, flags, ports, states and codes; of policies also numbers and what is
// true or false; of names those that Tandem gives, with another address, and those that the
// scripts of CNI plug-ins give.

// RecordingVersion is the version of a recording's form, which is in its first line.
const RecordingVersion = "tandem.io/hns-recording/v1"

// MaxRecording bounds a recording in bytes: the file that is written, and one that is read.
const MaxRecording = 64 << 20

// Call is a call in a recording.
type Call struct {
	Name    string          `json:"call"`              // the method of HNS
	ID      string          `json:"id,omitempty"`      // of the object, or of the network whose endpoints are listed
	Request json.RawMessage `json:"request,omitempty"` // the object that is wanted
	Answer  json.RawMessage `json:"answer,omitempty"`  // none of what failed
	Failed  *Refusal        `json:"failed,omitempty"`
	Micros  int64           `json:"us"` // how long it took
}

// Refusal is an error in a recording.
type Refusal struct {
	Function string `json:"function,omitempty"` // such as "HcnCreateLoadBalancer"; empty if HNS did not refuse the call
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

// Record returns an HNS that writes its calls to out, redacted with a key, until
// MaxRecording bytes are written or writing fails: that is logged, and the calls go on. Its
// Close closes both.
func Record(h HNS, out io.WriteCloser, key []byte, log *slog.Logger) HNS {
	r := &recorder{hns: h, log: log, out: out, words: words{redact.New(key)}, room: MaxRecording}
	r.line(struct {
		APIVersion string `json:"apiVersion"`
	}{RecordingVersion})
	return r
}

// RecordIn is Record into a file, which is replaced, with a key that is kept nowhere. If
// the file cannot be made, that is logged, and the HNS is returned as it is. Without a
// name it is, too.
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
		err = fmt.Errorf("the file has reached %d MiB", MaxRecording>>20)
	default:
		r.room -= len(b)
		_, err = r.out.Write(b)
	}
	if err != nil {
		r.ended = true
		r.log.Warn("recording of HNS calls ended", "err", err)
	}
}

// recorded makes a call and writes it down.
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

// deleted records a call without an answer.
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

// words are what a recording has instead of the words of a node.
type words struct{ *redact.Redactor }

// object returns an object, or a list, as JSON without words of the node. A type that is not
// known here is left out.
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
	if err != nil { // settings of HNS that are no JSON
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

// policy replaces the texts in a policy's settings.
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

// name replaces a name, or an address in words.
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

// id replaces a GUID by one. HNS compares them whatever their case.
func (w words) id(s string) string {
	if s == "" {
		return ""
	}
	h := hex.EncodeToString(w.Sum("id", []byte(strings.ToLower(s)))[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// mac replaces a hardware address by one that is administered locally.
func (w words) mac(s string) string {
	if s == "" {
		return ""
	}
	plain := strings.ToLower(strings.ReplaceAll(s, ":", "-"))
	b := w.Sum("mac", []byte(plain))
	return fmt.Sprintf("02-%02x-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3], b[4])
}
