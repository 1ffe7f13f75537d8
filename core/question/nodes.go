// SPDX-License-Identifier: Apache-2.0

package question

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Node is one node of a cluster, in short.
type Node struct {
	Node     string  `json:"node"`
	Pod      string  `json:"pod"`
	Version  string  `json:"version,omitempty"`
	Mode     string  `json:"mode,omitempty"`
	Healthy  bool    `json:"healthy"`
	Lag      float64 `json:"lag"` // seconds since the input that is least up to date was known to be
	Drift    uint64  `json:"drift"`
	Services int     `json:"services"`
	Failing  int     `json:"failing"` // Services
	Hash     string  `json:"desiredHash,omitempty"`
	Differs  bool    `json:"differs"` // from what most nodes have
	Err      string  `json:"error,omitempty"`
}

// The bounds of a status that a pod on a node has answered with: it is untrusted input.
const (
	maxEntry    = 4 << 20 // bytes of a Service, or of another field; a Service with 30,000 entries needs some 3 MB
	maxServices = 1_000_000
	maxInputs   = 1000
)

// ReadNode reads the status that a pod on a node has answered with, as a stream: of many
// nodes at a time no answer is in memory as a whole. Of a Service no more than what is used
// is decoded. Each, if any, gets the Services with their hashes.
func ReadNode(node, pod string, answer io.Reader, each func(name, hash string)) (n Node, err error) {
	n = Node{Node: node, Pod: pod}
	w := &window{Reader: answer}
	in := json.NewDecoder(w)
	w.in = in
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
		case "drift":
			err = in.Decode(&n.Drift)
		case "desiredHash":
			err = in.Decode(&n.Hash)
		case "inputs":
			err = list(in, maxInputs, func() error {
				var one struct{ Age float64 }
				err := in.Decode(&one)
				n.Lag = max(n.Lag, one.Age)
				return err
			})
		case "services":
			err = list(in, maxServices, func() error {
				var one struct{ Name, State, Hash string }
				err := in.Decode(&one)
				n.Services++
				if one.State == "Failing" {
					n.Failing++
				}
				if each != nil && err == nil {
					each(one.Name, one.Hash)
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
	return n, nil
}

var errNoStatus = errors.New("the response is not a tandem status")

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
			return fmt.Errorf("a list of the status has more than %d entries", most)
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
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod)) })
	count := map[string]int{}
	for i := range nodes {
		if nodes[i].Err == "" {
			count[nodes[i].Hash]++
		}
	}
	most := ""
	for _, hash := range slices.Sorted(maps.Keys(count)) {
		if most == "" || count[hash] > count[most] {
			most = hash
		}
	}
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Err != "":
		case n.Hash != most:
			n.Differs = true
		case !ok:
			usual, ok = *n, true
		}
	}
	return usual, ok
}

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
