// Package manifests reads a folder of ordinary Kubernetes manifests as if it
// were an API server: Services, EndpointSlices, Nodes and ServiceCIDRs in YAML or
// JSON, one or many to a file, single or in Lists.
//
//	folder ──▶ text ──▶ split ──▶ documents ──▶ decode ──▶ objects ──▶ merge
//	           UTF-8    cuts at    a cache by    strict,    and what    first in
//	                    "---"      content       with lines is wrong    file order
//	                                                                       │
//	           one-shot: Read, ReadFS ◀── Result ◀─────────────────────────┤
//	           running:  Source ──▶ Sink: only the differences ◀───────────┘
//
// Only regular files of the folder itself whose names end in .yaml, .yml or
// .json are read, also through symbolic links that stay in the folder, as those
// of a mounted ConfigMap do; sub-folders, hidden files and editors' backups are
// not. A single file, whatever its name, or the standard input ("-", read once)
// can stand in the folder's place. Other kinds, as they stand beside Services in any
// tutorial, are counted and left alone.
//
// Decoding is strict. A document with an unknown field, a wrong type or a
// duplicate key is refused as a whole, every other one stands, and each problem
// names file and line. Once an object has been read its last good version
// stands until the folder says otherwise without doubt: see hold.go.
package manifests
