// SPDX-License-Identifier: Apache-2.0

package question

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// Node is one node of a cluster, in short.
type Node struct {
	Node     string    `json:"node"`
	Pod      string    `json:"pod"`
	Version  string    `json:"version,omitempty"`
	Mode     string    `json:"mode,omitempty"`
	Healthy  bool      `json:"healthy"`
	Reasons  []string  `json:"reasons,omitempty"` // why not, and what is out of date
	Lag      float64   `json:"lag"`               // seconds since the input that is least up to date was known to be
	Drift    uint64    `json:"drift"`
	Services int       `json:"services"`
	Failing  int       `json:"failing"`            // Services
	Partial  int       `json:"partial"`            // Services
	Problems []Problem `json:"problems,omitempty"` // of no single Service
	Hash     string    `json:"desiredHash,omitempty"`
	Differs  bool      `json:"differs"` // from what most nodes have
	Err      string    `json:"error,omitempty"`
	Older    bool      `json:"older,omitempty"` // why there is no status: its version does not know the question
}

// Unanswered is a node that has given no status, and why.
func Unanswered(node, pod string, err error) Node {
	return Node{Node: node, Pod: pod, Err: err.Error(), Older: errors.Is(err, ErrOlder)}
}

// The states of a node, in the order of urgency.
const (
	NodeSilent    = "no answer"
	NodeOlder     = "older version"
	NodeUnhealthy = "not healthy"
	NodeFailing   = "failing" // Services are
	NodeDiffers   = "differs"
	NodeWaiting   = "waiting" // it has not been asked
	NodeHealthy   = "healthy"
)

// NodeStates are all of them, in this order.
func NodeStates() []string {
	return []string{NodeSilent, NodeOlder, NodeUnhealthy, NodeFailing, NodeDiffers, NodeWaiting, NodeHealthy}
}

// State is the most urgent state that a node is in.
func (n *Node) State() string {
	switch {
	case n.Older:
		return NodeOlder
	case n.Err != "":
		return NodeSilent
	case n.Version == "":
		return NodeWaiting
	case !n.Healthy:
		return NodeUnhealthy
	case n.Failing > 0:
		return NodeFailing
	case n.Differs:
		return NodeDiffers
	}
	return NodeHealthy
}

// NodeService is what is used of a Service of a node.
type NodeService struct {
	Name, State, Hash string
	Problems          []Problem
}

// The bounds of a status that a pod on a node has answered with: it is untrusted input.
const (
	maxEntry    = 4 << 20 // bytes of a Service, or of another field; a Service with 30,000 entries needs some 3 MB
	maxServices = 1_000_000
	maxInputs   = 1000
	maxKept     = 50  // problems, of a node and of its Services, and reasons
	maxText     = 400 // characters of each text
)

// Short selects the Services that a node in short, and its report, are made of: the others are counted by the total.
func Short() Filter {
	return Filter{States: slices.DeleteFunc(States(), func(s string) bool { return s == model.Programmed.String() })}
}

// ReadNode reads the status that a pod on a node has answered with, with the Services of Short or more, as a stream: of
// many nodes at a time no answer is in memory as a whole. Of a Service no more than what is used
// is decoded. Each, if any, gets the Services.
func ReadNode(node, pod string, answer io.Reader, each func(NodeService)) (n Node, err error) {
	n = Node{Node: node, Pod: pod}
	w := &window{Reader: answer}
	in := json.NewDecoder(w)
	w.in = in
	listed := 0
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return n, cmp.Or(err, errNoStatus)
	}
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return n, err
		}
		switch key {
		case "version":
			err = in.Decode(&n.Version)
		case "mode":
			err = in.Decode(&n.Mode)
		case "healthy":
			err = in.Decode(&n.Healthy)
		case "reasons":
			var all first[string]
			err, n.Reasons = in.Decode(&all), nil
			for _, one := range all {
				n.Reasons = append(n.Reasons, printable.Cut(one, maxText))
			}
		case "problems":
			var all first[Problem]
			err = in.Decode(&all)
			n.Problems = kept(all)
		case "drift":
			err = in.Decode(&n.Drift)
		case "desiredHash":
			err = in.Decode(&n.Hash)
		case "total":
			err = in.Decode(&n.Services)
		case "inputs":
			err = list(in, maxInputs, func() error {
				var one struct{ Age float64 }
				err := in.Decode(&one)
				n.Lag = max(n.Lag, one.Age)
				return err
			})
		case "services":
			err = list(in, maxServices, func() error {
				var one struct {
					Name, State, Hash string
					Problems          first[Problem]
				}
				err := in.Decode(&one)
				listed++
				switch one.State {
				case model.Failing.String():
					n.Failing++
				case model.Partial.String():
					n.Partial++
				}
				if each != nil && err == nil {
					each(NodeService{one.Name, one.State, one.Hash, one.Problems})
				}
				return err
			})
		default:
			err = in.Decode(&ignored{})
		}
		if err != nil {
			return n, err
		}
	}
	if _, err := in.Token(); err != nil {
		return n, err
	}
	if n.Version == "" {
		return n, errNoStatus
	}
	n.Services = max(n.Services, listed) // older ones do not tell
	n.Version, n.Mode, n.Hash = printable.Cut(n.Version, maxText), printable.Cut(n.Mode, maxText), printable.Cut(n.Hash, maxText)
	return n, nil
}

// first are the first entries of a list: the others are not decoded.
type first[T any] []T

func (f *first[T]) UnmarshalJSON(text []byte) error {
	if *f != nil {
		return errTwice
	}
	in := json.NewDecoder(bytes.NewReader(text))
	err := list(in, maxKept, func() error {
		var one T
		err := in.Decode(&one)
		*f = append(*f, one)
		return err
	})
	if errors.Is(err, errMany) {
		return nil
	}
	return err
}

// kept are problems of which so much is kept.
func kept(all []Problem) []Problem {
	all = slices.Clone(all)
	for i := range all {
		p := &all[i]
		p.Object, p.Where, p.Reason, p.Detail = printable.Cut(p.Object, maxText), printable.Cut(p.Where, maxText), printable.Cut(p.Reason, maxText), printable.Cut(p.Detail, maxText)
	}
	return all
}

// NodeReport is a node with the problems of its Services. One without a version and without an error has not been asked.
type NodeReport struct {
	Node
	Services []ServiceProblems // the most urgent first; Failing and Partial count those that are not kept, too
}

// ServiceProblems are those that a Service has on a node.
type ServiceProblems struct {
	Service, State string
	Problems       []Problem
}

// ReportNode reads a status as ReadNode does, and keeps the problems of the most urgent Services.
func ReportNode(node, pod string, answer io.Reader) (r NodeReport, err error) {
	found := make([][]ServiceProblems, len(States())+1) // those in states that are not known first
	r.Node, err = ReadNode(node, pod, answer, func(s NodeService) {
		of := &found[urgency(s.State)+1]
		if len(s.Problems) > 0 && len(*of) < maxKept {
			*of = append(*of, ServiceProblems{printable.Cut(s.Name, maxText), printable.Cut(s.State, maxText), kept(s.Problems)})
		}
	})
	r.Services = slices.Concat(found...)
	r.Services = slices.Clone(r.Services[:min(len(r.Services), maxKept)])
	return r, err
}

// ClusterProblem is a problem that some nodes have.
type ClusterProblem struct {
	Service, State string // both empty for one of no single Service
	Problem
	Nodes []string // in their order
}

// Together are the problems of nodes, each once: the most urgent first, of these what most nodes have. The reports are
// in the order of nodes.
func Together(all []NodeReport) (problems []*ClusterProblem) {
	type key struct {
		service string
		Problem
	}
	known := map[key]*ClusterProblem{}
	add := func(node, service, state string, p Problem) {
		k := key{service, p}
		c := known[k]
		if c == nil {
			c = &ClusterProblem{Service: service, State: state, Problem: p}
			known[k], problems = c, append(problems, c)
		}
		if urgency(state) < urgency(c.State) {
			c.State = state
		}
		if len(c.Nodes) == 0 || c.Nodes[len(c.Nodes)-1] != node {
			c.Nodes = append(c.Nodes, node)
		}
	}
	for i := range all {
		for _, p := range all[i].Problems {
			add(all[i].Node.Node, "", "", p)
		}
		for _, s := range all[i].Services {
			for _, p := range s.Problems {
				add(all[i].Node.Node, s.Service, s.State, p)
			}
		}
	}
	slices.SortStableFunc(problems, func(a, b *ClusterProblem) int {
		return cmp.Or(cmp.Compare(urgency(a.State), urgency(b.State)), cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Service, b.Service))
	})
	return problems
}

var (
	errNoStatus = errors.New("the response is not a tandem status")
	errMany     = errors.New("a list of the status has too many entries")
	errTwice    = errors.New("a list of the status is there twice")
)

// ignored is a value that is not decoded.
type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

// window is an answer of which a decoder may hold so much at a time.
type window struct {
	io.Reader
	in   *json.Decoder
	read int64
}

func (w *window) Read(p []byte) (int, error) {
	held := w.read - w.in.InputOffset()
	if held > maxEntry {
		return 0, fmt.Errorf("a field or a Service of the status has more than %d MiB", maxEntry>>20)
	}
	n, err := w.Reader.Read(p[:min(int64(len(p)), maxEntry+1-held)])
	w.read += int64(n)
	return n, err
}

// list calls each where an entry of a list begins; null is an empty one.
func list(in *json.Decoder, most int, each func() error) error {
	t, err := in.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return errNoStatus
	}
	for n := 0; in.More(); n++ {
		if n == most {
			return fmt.Errorf("%w: more than %d", errMany, most)
		}
		if err := each(); err != nil {
			return err
		}
	}
	_, err = in.Token()
	return err
}

// NodeDifference is a Service that some node knows otherwise than most.
type NodeDifference struct {
	Node    string `json:"node"`
	Service string `json:"service"`
	What    string `json:"what"` // missing, extra, differs
}

// Compare brings nodes into their order, marks those that differ from what most have, and
// returns the first of most. Of several that are as frequent the first by hash counts as
// that of most. Nodes that gave no answer are left out; ok is false when none did.
func Compare(nodes []Node) (usual Node, ok bool) {
	if first := compare(nodes, func(n *Node) *Node { return n }); first != nil {
		return *first, true
	}
	return usual, false
}

// CompareReports does the same with reports.
func CompareReports(reports []NodeReport) {
	compare(reports, func(r *NodeReport) *Node { return &r.Node })
}

// compare sorts what has nodes, marks those that differ, and returns the first of most; nil where none answered.
func compare[T any](all []T, of func(*T) *Node) (usual *Node) {
	slices.SortFunc(all, func(a, b T) int { return of(&a).compare(of(&b)) })
	count := map[string]int{}
	for i := range all {
		if n := of(&all[i]); n.answered() {
			count[n.Hash]++
		}
	}
	most := ""
	for _, hash := range slices.Sorted(maps.Keys(count)) {
		if most == "" || count[hash] > count[most] {
			most = hash
		}
	}
	for i := range all {
		n := of(&all[i])
		n.Differs = n.answered() && n.Hash != most
		if usual == nil && n.answered() && !n.Differs {
			usual = n
		}
	}
	return usual
}

// compare orders nodes by their names.
func (n *Node) compare(o *Node) int {
	return cmp.Or(cmp.Compare(n.Node, o.Node), cmp.Compare(n.Pod, o.Pod))
}

// answered reports whether a node has given a status.
func (n *Node) answered() bool { return n.Err == "" && n.Version != "" }

// Differences lists in what the hashes of a node's Services differ from the usual ones.
func Differences(node string, usual, own map[string]string) (all []NodeDifference) {
	for _, name := range slices.Sorted(maps.Keys(usual)) {
		switch hash, known := own[name]; {
		case !known:
			all = append(all, NodeDifference{node, name, "missing"})
		case hash != usual[name]:
			all = append(all, NodeDifference{node, name, "differs"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if _, known := usual[name]; !known {
			all = append(all, NodeDifference{node, name, "extra"})
		}
	}
	return all
}
