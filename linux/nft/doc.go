// SPDX-License-Identifier: Apache-2.0

// Package nft is the language of nftables: tables, sets, chains and rules as values,
// their text, their netlink encoding and decoding, and the driver that programs them.
// It knows no Service and no table of any mode.
//
//	Table, Set, Rule ──▶ Key, Value ──Script──▶ text of nft
//	  │                    │     ▲
//	  │                    │     └─Decode──┐
//	  ▼                    ▼               │
//	 Sim                 Encode ─────▶ kernel (Driver)
//
// A mode declares a Table with its Sets, and compiles its state to objects: a Key and
// a Value for the table and for each set, chain and element. Text, messages and
// simulator agree because all three come from one description of each statement.
//
// A new kind of statement needs a type in statement.go, its text in
// statement_text.go, its expressions in statement_encode.go and its effect on a
// packet in statement_eval.go.
//
//	set.go, table.go          what a mode declares: fields of keys, sets, tables
//	key.go, object.go         objects: their names and contents
//	entry.go                  elements in the terms of Services
//	statement.go              rules
//	statement_text.go,        their text; text of objects (Script)
//	  text.go
//	message.go, userdata.go   the numbers of nf_tables; notes that the kernel keeps
//	expression.go,            rules to netlink
//	  statement_encode.go
//	element_encode.go,        elements to netlink, and back
//	  element_decode.go
//	batch.go, declare.go      ops to one transaction, in an order that works (Encode)
//	split.go                  where a transaction that is too large is cut
//	decode.go                 netlink back to objects (Decode)
//	eval.go,                  objects and a packet to an outcome (Sim)
//	  statement_eval.go
//	driver_linux.go,          the kernel (Driver): what is written, and read back
//	  read_linux.go,          over several sockets at a time, in parts, or, where there
//	  read_sets_linux.go,     is very much, by its keys
//	  read_numbered_linux.go
//	owner_linux.go            which tables are owned; a kernel without nf_tables
//	probe_linux.go            whether this kernel can do it (Try)
//	number.go                 numbers in keys: numgen and hashes
//	describe.go               one object as text, for trace and drift
//	counter*.go, budget*.go   counters of elements, and their bound
//	plain*.go, empty_linux.go small transactions on tables without a Table
//	basechains_linux.go,      what packets meet besides our tables
//	  others_linux.go
//	flowtable*.go             flow offload
//	follow*.go                the rules that one packet traverses (nft_trace)
//	writers_linux.go          which other programs write to nf_tables
package nft
