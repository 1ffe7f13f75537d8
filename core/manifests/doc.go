// SPDX-License-Identifier: Apache-2.0

// Package manifests reads a folder of Kubernetes manifests as if it were an API
// server: Services, EndpointSlices, Nodes, ServiceCIDRs, and TCPRoutes, UDPRoutes and
// ReferenceGrants of the Gateway API, in YAML or JSON, one or many to a file, single
// or in Lists.
//
//	folder ──▶ text ──▶ split ──▶ documents ──▶ decode ──▶ objects ──▶ merge
//	           UTF-8    cuts at    a cache by    strict,    and what    first in
//	                    "---"      content       with lines is wrong    file order
//	                                                                       │
//	           once:    Read, ReadFS ◀── Result ◀──────────────────────────┤
//	           running: Source ──▶ Sink: only the differences ◀────────────┘
//
// Only regular files of the folder itself whose names end in .yaml, .yml or .json are
// read, also through symbolic links that stay in the folder, as in a mounted
// ConfigMap; sub-folders, hidden files and editors' backups are not. A single file of
// any name or the standard input ("-", read once) may be given instead of a folder.
// Objects of other kinds are skipped.
//
// Decoding is strict (core/strictyaml). A document with a mistyped field, a wrong
// type or a duplicate key is rejected; a field that resembles none is one of a newer
// API, and a warning; the others are not affected, and each problem
// names file and line. The last good version of an object is kept until it is certain
// that the folder no longer has it: see file.go.
//
//	problem.go  Problem, and the limits of what is read
//	object.go   kinds; an object, and whether two are the same
//	split.go    a file to documents
//	decode.go   a document to objects
//	origin.go   folder, file or standard input
//	file.go     one file: what was read of it, and what is kept
//	reader.go   the folder: reads what has changed, merges all files
//	source.go   following the folder
package manifests
