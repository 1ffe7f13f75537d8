package iptables

import (
	"cmp"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Table is a table of iptables. Only these two hold anything of ours.
type Table uint8

// The tables, in the order in which they are written.
const (
	Filter Table = iota
	NAT
)

// String returns the table's name.
func (t Table) String() string { return [...]string{"filter", "nat"}[t] }

// chainID names a chain of one table of one family.
type chainID struct {
	Family model.Family
	Table  Table
	Chain  string
}

// Key names an object: a whole chain that one port has for itself, or one rule
// of a chain to which many contribute. A chain's rules are its objects in the
// order of Line.
type Key struct {
	chainID
	// Line is the place and the matches of one rule (see line). The empty one is
	// the chain itself, with all its rules where it is a port's own, and without
	// any where it is shared.
	Line string
}

// String returns the key as people know it.
func (k Key) String() string {
	s := k.Family.String() + " " + k.Table.String() + " " + k.Chain
	if k.Line != "" {
		s += " " + strings.TrimSpace(k.Line[1:])
	}
	return s
}

// Value is the text of rules as iptables-save prints them, each ending in a
// newline, without "-A CHAIN". All of it is canonical: see Rule.text.
type Value string

// compareKeys orders keys as scripts list them.
func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table),
		strings.Compare(a.Chain, b.Chain), strings.Compare(a.Line, b.Line))
}
