// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
)

// Owner is what the comments of all tables of Tandem begin with.
const Owner = "Kubernetes Services, kept by Tandem"

// Table is a table of one name in each of the families ip and ip6, with the sets
// and maps that it may have.
type Table struct {
	Name string

	// Owner is what the comment of the table begins with, whatever its version. A
	// table of that name without it is foreign: it is neither adopted nor written to.
	Owner string

	// Comment is visible to users and has the layout version. An owned table with
	// another one is re-created, so it must change whenever the meaning of a set, a
	// map or a rule does.
	Comment string

	sets  []*Set
	named map[string]*Set
	flags uint32 // NFT_TABLE_F_*
	leads Leads
}

// Leads states what a packet looks up in a chain that an element of a verdict map sends it
// to: elements of another set with the same address, protocol and port, and with n numbers
// from first on. N is 0 for chains that look up nothing like that. So elements that are
// there by the hundred thousand can be read by their keys.
type Leads func(chain string) (set *Set, first uint16, n int)

// Lead returns the table with leads. The sets that lead to one come before it.
func (t *Table) Lead(leads Leads) *Table {
	t.leads = leads
	return t
}

// NewTable returns a table with sets, which are listed in that order. A set is of
// one table.
func NewTable(name, owner, comment string, sets ...*Set) *Table {
	t := &Table{Name: name, Owner: owner, Comment: comment, sets: sets, named: map[string]*Set{}}
	for i, s := range sets {
		s.order = i
		t.named[s.Name] = s
	}
	return t
}

// Sets returns the sets, for reading only.
func (t *Table) Sets() []*Set { return t.sets }

// Object returns the table of a family.
func (t *Table) Object(f model.Family) (Key, Value) {
	return TableKey(f), Value{Body: &Body{Comment: t.Comment}}
}

// SetObject returns a set or a map, without elements.
func SetObject(f model.Family, s *Set) (Key, Value) {
	return SetKey(f, s.Name), Value{Body: &Body{Set: shapeOf(f, s)}}
}

// ChainObject returns a chain with its rules.
func (t *Table) ChainObject(f model.Family, name string, h Hook, rules []Rule) (Key, Value) {
	return ChainKey(f, name), Value{Body: &Body{Chain: t.newChain(f, h, rules)}}
}

func (t *Table) newChain(f model.Family, h Hook, rules []Rule) *Chain {
	digests := make([]uint64, len(rules))
	for i, r := range rules {
		digests[i] = t.digest(f, r)
	}
	return &Chain{Hook: h, Rules: rules, Digest: chainDigest(h, digests)}
}

// digest is a hash of a rule, stored with the rule in the kernel. It reports whether
// the rule is the one that we would write now: the kernel does not return a rule byte
// for byte as written.
func (t *Table) digest(f model.Family, r Rule) uint64 {
	return digestOf(t.Comment + "\n" + r.Text(f))
}

func chainDigest(h Hook, rules []uint64) uint64 {
	return digestOf(fmt.Sprintf("%+v %x", h, rules))
}

func digestOf(s string) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint64(sum[:])
}
