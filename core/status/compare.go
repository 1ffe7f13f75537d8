// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
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

	hashes map[string]string // by Service
}

// NodeOf is a node with the status that a pod on it has answered with.
func NodeOf(node, pod string, d *Document) Node {
	n := Node{Node: node, Pod: pod, Version: d.Version, Mode: d.Mode, Healthy: d.Healthy, Drift: d.Drift, Services: len(d.Services), Hash: d.Hash, hashes: map[string]string{}}
	for _, in := range d.Inputs {
		n.Lag = max(n.Lag, in.Age)
	}
	for i := range d.Services {
		s := &d.Services[i]
		n.hashes[s.Name] = s.Hash
		if s.State == "Failing" {
			n.Failing++
		}
	}
	return n
}

// NodeDifference is a Service that some node knows otherwise than most.
type NodeDifference struct {
	Node    string `json:"node"`
	Service string `json:"service"`
	What    string `json:"what"` // missing, extra, differs
}

// Compare marks the nodes that differ from what most have, and lists in what. Of
// several that are as frequent the first by hash counts as that of most. Nodes that
// gave no answer are left out.
func Compare(nodes []Node) (differences []NodeDifference) {
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
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Err == "" && n.Hash == most })
	if i < 0 {
		return nil
	}
	usual := nodes[i].hashes
	for i := range nodes {
		if n := &nodes[i]; n.Err == "" && n.Hash != most {
			n.Differs = true
			differences = append(differences, n.differences(usual)...)
		}
	}
	return differences
}

// differences lists in what a node differs from others.
func (n *Node) differences(usual map[string]string) (all []NodeDifference) {
	for _, name := range slices.Sorted(maps.Keys(usual)) {
		switch hash, known := n.hashes[name]; {
		case !known:
			all = append(all, NodeDifference{n.Node, name, "missing"})
		case hash != usual[name]:
			all = append(all, NodeDifference{n.Node, name, "differs"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.hashes)) {
		if _, known := usual[name]; !known {
			all = append(all, NodeDifference{n.Node, name, "extra"})
		}
	}
	return all
}
