// SPDX-License-Identifier: Apache-2.0

// Package nft is the language of nftables: tables, sets, chains and rules as
// values, their text, their netlink messages and back, and the driver that keeps
// them in the kernel. It knows no Service and no table of any mode.
//
//	Table, Set, Rule ──▶ Key, Value ──Script──▶ text of nft
//	  │                    │     ▲
//	  │                    │     └─Decode──┐
//	  ▼                    ▼               │
//	 Sim                 Encode ─────▶ kernel (Driver)
//
// A mode declares a Table with its Sets, and turns what it wants into objects: a Key
// and a Value for the table, for each set, chain and element. All that packets meet
// is the same in the text, in the messages and in the simulator, since all three
// come from one description of each statement.
//
// What a new kind of statement takes is a type in statement.go, its text in
// statement_text.go, its expressions in statement_encode.go and what it does to a
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
//	  read_linux.go
//	owner_linux.go            which tables are ours; a kernel without nf_tables
//	probe_linux.go            whether this kernel can do it (Try)
package nft
