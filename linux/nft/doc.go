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
// A new kind of statement is a type in statement.go, with its text, its expressions and
// its effect on a packet there.
//
//	table.go           what a mode declares: sets, chains, tables, and their objects
//	key.go             objects by name, and elements in the terms of Services
//	statement.go       rules: each statement's text, encoding and simulation
//	text.go            the text of objects (Script)
//	spell.go           the text of any program's rule, as far as its expressions are known
//	sim.go             objects and a packet to an outcome (Sim)
//	message.go         numbers of nf_tables, and user data that the kernel keeps
//	encode.go          expressions and elements to netlink
//	batch.go           ops to one transaction, in an order that the kernel accepts (Encode);
//	                   splits of too large ones
//	decode.go          netlink back to objects (Decode)
//	driver_linux.go    writing to the kernel (Driver); ownership of tables; probes of the
//	                   kernel (Try)
//	read_linux.go      reading back, over several sockets at once; very large sets by keys
//	counters*.go       counters of elements, and their bound
//	others_linux.go    other programs' chains on this node; small transactions on tables
//	                   without a Table; temporary tables
//	flowtable_linux.go flow offload
//	follow_linux.go    the rules that one packet traverses (nft_trace); other programs that
//	                   write to nf_tables
//	reject_linux.go    packets that rules reject (nft_trace)
package nft
