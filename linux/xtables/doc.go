// SPDX-License-Identifier: Apache-2.0

// Package xtables is the language of iptables: rules as values, their text, and
// the commands that read and write them. It knows no Service and no chain of any
// mode.
//
//	Rule ──Append──▶ text of iptables-save ──ParseRule──▶ Rule
//	  │                 │            ▲
//	  │                 ▼            │
//	  │               Script      ParseSave
//	  │                 │            ▲
//	  ▼                 ▼            │
//	 Sim     iptables-restore, iptables-save (Commands)
//
// A rule has one text, whatever the order in which its matches were given or printed:
// equal rules have equal texts. A rule with options that this package does not know
// is kept as printed (Unparsed).
//
// A new kind of match needs a type and its evaluation in rule.go, its text in text.go and
// its options in parse.go.
//
//	rule.go          rules: matches and targets; tables, variants; packets through rules
//	text.go          the text of rules; scripts of iptables-restore, listings of iptables-save
//	parse.go         text to rules
//	command_linux.go the commands of a variant, legacy or nft, and the lock
//	probe_linux.go   whether a variant works; rules of other programs, before Tandem's and for doctor
//	driver_linux.go  the common part of modes' drivers: tables in a network namespace
//	watch_linux.go   detection of external changes
package xtables
