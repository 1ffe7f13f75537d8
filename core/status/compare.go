// SPDX-License-Identifier: Apache-2.0

package status

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

// ReadNode reads the status that a pod on a node has answered with, as a stream: of many
// nodes at a time no answer is in memory as a whole. Each, if any, gets the Services
// with their hashes.
func ReadNode(node, pod string, answer io.Reader, each func(name, hash string)) (n Node, err error) {
	n = Node{Node: node, Pod: pod}
	d, err := readStatus(json.NewDecoder(answer), func(s *Service) {
		n.Services++
		if s.State == "Failing" {
			n.Failing++
		}
		if each != nil {
			each(s.Name, s.Hash)
		}
	})
	if err != nil {
		return n, err
	}
	if d.Version == "" {
		return n, errors.New("the response is not a tandem status")
	}
	n.Version, n.Mode, n.Healthy, n.Drift, n.Hash = d.Version, d.Mode, d.Healthy, d.Drift, d.Hash
	for _, in := range d.Inputs {
		n.Lag = max(n.Lag, in.Age)
	}
	return n, nil
}

// maxHead bounds what is read of a status beside its Services.
const maxHead = 4 << 20

// readStatus decodes a status without its Services, which each gets one by one.
func readStatus(in *json.Decoder, each func(*Service)) (d Document, err error) {
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return d, cmp.Or(err, errors.New("the response is not a tandem status"))
	}
	head, size := map[string]json.RawMessage{}, 0
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return d, err
		}
		if name, _ := key.(string); name != "services" {
			var value json.RawMessage
			if err := in.Decode(&value); err != nil {
				return d, err
			}
			if size += len(value); size > maxHead {
				return d, fmt.Errorf("the status has more than %d MiB beside its Services", maxHead>>20)
			}
			head[name] = value
			continue
		}
		if t, err := in.Token(); err != nil || t != json.Delim('[') {
			if err != nil || t != nil {
				return d, cmp.Or(err, errors.New("the response is not a tandem status"))
			}
			continue // null
		}
		for in.More() {
			var s Service
			if err := in.Decode(&s); err != nil {
				return d, err
			}
			each(&s)
		}
		if _, err := in.Token(); err != nil {
			return d, err
		}
	}
	text, err := json.Marshal(head)
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
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
