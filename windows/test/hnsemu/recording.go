// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// maxDifferences bounds the differences that are reported of a recording.
const maxDifferences = 100

// ReadRecording reads a recording. A last line without its end, as after a crash, is
// ignored.
func ReadRecording(from io.Reader) (calls []hns.Call, err error) {
	in := bufio.NewReader(io.LimitReader(from, hns.MaxRecording+1))
	read := 0
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		read += len(line)
		switch {
		case read > hns.MaxRecording:
			return nil, fmt.Errorf("the recording is larger than %d MiB", hns.MaxRecording>>20)
		case errors.Is(err, io.EOF) && n > 1:
			return calls, nil
		case err != nil:
			return nil, fmt.Errorf("line %d of the recording: %w", n, err)
		}
		var l struct {
			APIVersion string
			hns.Call
		}
		switch err := json.Unmarshal(line, &l); {
		case err != nil:
			return nil, fmt.Errorf("line %d of the recording: %w", n, err)
		case n == 1 && l.APIVersion != hns.RecordingVersion:
			return nil, fmt.Errorf("apiVersion %q: must be %q", l.APIVersion, hns.RecordingVersion)
		case n > 1:
			calls = append(calls, l.Call)
		}
	}
}

// failure returns the error that a call failed with; nil if it did not.
func failure(c hns.Call) error {
	if c.Failed == nil {
		return nil
	}
	if code, err := strconv.ParseUint(c.Failed.Code, 0, 32); err == nil {
		return &hns.Error{Call: c.Failed.Function, Code: hns.Code(code)}
	}
	return fmt.Errorf("%s failed in the recording", c.Name)
}

// do makes a call.
func do(c hns.Call, h hns.HNS) (answer any, err error) {
	switch c.Name {
	case "Version":
		return h.Version()
	case "Networks":
		return h.Networks()
	case "EndpointIDs":
		return h.EndpointIDs(c.ID)
	case "Endpoint":
		return h.Endpoint(c.ID)
	case "CreateEndpoint":
		return requesting(c, h.CreateEndpoint)
	case "DeleteEndpoint":
		return nil, h.DeleteEndpoint(c.ID)
	case "BalancerIDs":
		return h.BalancerIDs()
	case "Balancer":
		return h.Balancer(c.ID)
	case "CreateBalancer":
		return requesting(c, h.CreateBalancer)
	case "ModifyBalancer":
		return requesting(c, func(lb hns.LoadBalancer) (hns.LoadBalancer, error) { return h.ModifyBalancer(c.ID, lb) })
	case "DeleteBalancer":
		return nil, h.DeleteBalancer(c.ID)
	}
	return nil, fmt.Errorf("HNS has no call %q", c.Name)
}

func requesting[T any](c hns.Call, f func(T) (T, error)) (any, error) {
	var request T
	if err := json.Unmarshal(c.Request, &request); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return f(request)
}

// Player is an HNS that answers from a recording: equal requests in the recorded order, as often
// as recorded. The order of different requests, and of ids in one, does not matter. The
// caller needs the inputs of the recorded proxy with the recording's redacted names and
// addresses. It is safe for concurrent use.
type Player struct {
	mu          sync.Mutex
	answers     map[string][]hns.Call
	differences []string
}

// NewPlayer returns a player of a recording.
func NewPlayer(calls []hns.Call) *Player {
	p := &Player{answers: map[string][]hns.Call{}}
	for _, c := range calls {
		p.answers[asked(c)] = append(p.answers[asked(c)], c)
	}
	return p
}

var _ hns.HNS = (*Player)(nil)

// asked returns a request in canonical form.
func asked(c hns.Call) string {
	return strings.TrimSpace(c.Name + " " + strings.ToLower(c.ID) + " " + unordered(c.Request))
}

// unordered returns JSON with sorted lists and sorted names.
func unordered(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return string(raw)
	}
	return text(sortedLists(v))
}

func sortedLists(v any) any {
	switch x := v.(type) {
	case []any:
		for i := range x {
			x[i] = sortedLists(x[i])
		}
		slices.SortFunc(x, func(a, b any) int { return cmp.Compare(text(a), text(b)) })
	case map[string]any:
		for name := range x {
			x[name] = sortedLists(x[name])
		}
	}
	return v
}

// Differences lists requests that are not in the recording, and recorded ones that were not
// made, at most maxDifferences.
func (p *Player) Differences() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.differences)
	for _, request := range slices.Sorted(maps.Keys(p.answers)) {
		if n := len(p.answers[request]); n > 0 {
			all = append(all, fmt.Sprintf("not requested, %d times in the recording: %s", n, request))
		}
	}
	return all[:min(len(all), maxDifferences)]
}

func play[T any](p *Player, name, id string, request any) (answer T, err error) {
	c := hns.Call{Name: name, ID: id}
	if request != nil {
		c.Request = json.RawMessage(text(request))
	}
	key := asked(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.answers[key]
	if len(left) == 0 {
		if len(p.differences) < maxDifferences {
			p.differences = append(p.differences, "not in the recording: "+key)
		}
		return answer, errors.New("not in the recording: " + key)
	}
	p.answers[key] = left[1:]
	if err := failure(left[0]); err != nil || len(left[0].Answer) == 0 {
		return answer, err
	}
	return answer, json.Unmarshal(left[0].Answer, &answer)
}

func (p *Player) Version() (hns.Version, error) { return play[hns.Version](p, "Version", "", nil) }

func (p *Player) Networks() ([]hns.Network, error) {
	return play[[]hns.Network](p, "Networks", "", nil)
}
func (p *Player) Close() error { return nil }

func (p *Player) EndpointIDs(network string) ([]string, error) {
	return play[[]string](p, "EndpointIDs", network, nil)
}

func (p *Player) Endpoint(id string) (hns.Endpoint, error) {
	return play[hns.Endpoint](p, "Endpoint", id, nil)
}

func (p *Player) CreateEndpoint(e hns.Endpoint) (hns.Endpoint, error) {
	return play[hns.Endpoint](p, "CreateEndpoint", "", e)
}

func (p *Player) DeleteEndpoint(id string) error {
	_, err := play[any](p, "DeleteEndpoint", id, nil)
	return err
}

func (p *Player) BalancerIDs() ([]string, error) { return play[[]string](p, "BalancerIDs", "", nil) }

func (p *Player) Balancer(id string) (hns.LoadBalancer, error) {
	return play[hns.LoadBalancer](p, "Balancer", id, nil)
}

func (p *Player) CreateBalancer(lb hns.LoadBalancer) (hns.LoadBalancer, error) {
	return play[hns.LoadBalancer](p, "CreateBalancer", "", lb)
}

func (p *Player) ModifyBalancer(id string, to hns.LoadBalancer) (hns.LoadBalancer, error) {
	return play[hns.LoadBalancer](p, "ModifyBalancer", id, to)
}

func (p *Player) DeleteBalancer(id string) error {
	_, err := play[any](p, "DeleteBalancer", id, nil)
	return err
}

// Replay makes the calls of a recording on an emulator of its version, and lists the
// answers that differ, at most maxDifferences. Other programs' objects are put into the emulator
// as recorded; only the recorded proxy's own are compared in listings. A recording without a
// version is an error.
func Replay(calls []hns.Call) (differences []string, err error) {
	var v hns.Version
	i := slices.IndexFunc(calls, func(c hns.Call) bool { return c.Name == "Version" && c.Failed == nil })
	if i < 0 || json.Unmarshal(calls[i].Answer, &v) != nil {
		return nil, errors.New("the recording has no version of HNS")
	}
	r := replay{e: New(v), here: map[string]string{}, there: map[string]string{}}
	for i, c := range calls {
		if d := r.call(c); d != "" && len(differences) < maxDifferences {
			differences = append(differences, fmt.Sprintf("call %d, %s: %s", i+1, asked(c), d))
		}
	}
	return differences, nil
}

// replay maps the ids of objects that the recorded proxy created: from the recording's to the
// emulator's (here), and back (there).
type replay struct {
	e           *Emulator
	here, there map[string]string
}

var guids = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func translated(s string, ids map[string]string) string {
	return guids.ReplaceAllStringFunc(s, func(id string) string { return cmp.Or(ids[id], id) })
}

// call makes a call, and describes how its answer differs; "" for not.
func (r *replay) call(c hns.Call) string {
	r.facts(c)
	c.ID, c.Request = translated(c.ID, r.here), json.RawMessage(translated(string(c.Request), r.here))
	answer, err := do(c, r.e.Client())
	want, _ := errors.AsType[*hns.Error](failure(c))
	got, _ := errors.AsType[*hns.Error](err)
	switch {
	case want != nil && got != nil && want.Code == got.Code:
		return ""
	case c.Failed != nil || err != nil:
		return fmt.Sprintf("recorded %v, emulated %v", cmp.Or(failure(c), errNone), cmp.Or(err, errNone))
	}
	raw := json.RawMessage(text(answer))
	if strings.HasPrefix(c.Name, "Create") {
		var a, b struct{ ID string }
		if json.Unmarshal(c.Answer, &a) == nil && json.Unmarshal(raw, &b) == nil {
			r.here[a.ID], r.there[b.ID] = b.ID, a.ID
		}
	}
	recorded, emulated := c.Answer, json.RawMessage(translated(string(raw), r.there))
	if strings.HasSuffix(c.Name, "IDs") {
		recorded, emulated = r.own(recorded), r.own(emulated)
	}
	if a, b := unordered(recorded), unordered(emulated); len(c.Answer) > 0 && a != b {
		return fmt.Sprintf("recorded %s, emulated %s", a, b)
	}
	return ""
}

var errNone = errors.New("no error")

// own returns the ids in a list that the recorded proxy created.
func (r *replay) own(raw json.RawMessage) json.RawMessage {
	var ids, own []string
	if json.Unmarshal(raw, &ids) != nil {
		return raw
	}
	for _, id := range ids {
		if r.here[id] != "" {
			own = append(own, id)
		}
	}
	return json.RawMessage(text(own))
}

// facts puts other programs' objects into the emulator as the recorded proxy read them.
func (r *replay) facts(c hns.Call) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	failed, _ := errors.AsType[*hns.Error](failure(c))
	gone := failed != nil && failed.Code.NotFound() && r.here[c.ID] == ""
	switch c.Name {
	case "Networks":
		var all []hns.Network
		if json.Unmarshal(c.Answer, &all) == nil {
			clear(r.e.networks)
			for _, n := range all {
				r.e.networks[n.ID] = n
			}
		}
	case "Endpoint":
		var p hns.Endpoint
		if gone {
			delete(r.e.endpoints, c.ID)
		} else if r.here[c.ID] == "" && json.Unmarshal(c.Answer, &p) == nil {
			r.e.endpoints[p.ID] = p
		}
	case "Balancer":
		var lb hns.LoadBalancer
		if gone {
			delete(r.e.balancers, c.ID)
		} else if r.here[c.ID] == "" && json.Unmarshal(c.Answer, &lb) == nil {
			r.e.balancers[lb.ID] = lb
		}
	}
}
