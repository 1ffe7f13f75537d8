// SPDX-License-Identifier: Apache-2.0

// Package strictyaml reads YAML and JSON files written by people: manifests and
// configuration files. It reports all faults at once, each with its line. Time and
// memory are bounded for any input, and none makes it panic.
//
//	bytes ──Text──▶ UTF-8 ──Parse──▶ nodes with lines ──Decode──▶ a Go type
//	  │                                └── Entries, Get, Line: for readers of their own
//	  └──Plain──▶ JSON, of what is written as nearly all manifests are
//
// Decode is as strict as Kubernetes' strict decoding and reads the same: booleans of
// YAML 1.1, merge keys, numbers in all their notations; unknown fields, duplicate
// keys, wrong types and unknown tags are faults. What aliases expand to is bounded.
//
//	text.go   UTF-8, UTF-16, lines
//	fault.go  Fault: what is wrong in which line; describing values
//	plain.go  plain text to JSON, without nodes
//	parse.go  text to nodes, with better lines for syntax errors
//	node.go   looking into nodes
//	json.go   nodes to the JSON that Kubernetes' decoder reads
//	check.go  nodes against a Go type: every fault, after the decoder has refused
package strictyaml
