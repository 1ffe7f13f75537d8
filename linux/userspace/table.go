// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// table is where the rules are: in the nat table of iptables, or in tables of our
// own in nftables. One goroutine uses it at a time, but for Read.
type table interface {
	// Families are those that it serves.
	Families() []model.Family

	// Reading says that Read is next: what others have done so far is no news
	// then.
	Reading()

	// Read returns the objects of all families.
	Read(context.Context) (map[Key]found, error)

	// Write makes changes to one family: all of them or none. An error may leave
	// open which.
	Write(context.Context, model.Family, []edit) error

	// Disturbed reports whether somebody else may have written since Reading.
	Disturbed() (bool, error)

	// Most is how many changes one Write takes; 0 is no limit.
	Most() int

	Close() error
}

// edit is one change to an object of a table.
type edit struct {
	verb  ledger.Verb
	key   Key
	rules []xtables.Rule // what shall be
	have  installed      // what is
}

// found is an object as it was read.
type found struct {
	Value
	installed
}

// installed is a rule as it stands in its table.
type installed struct {
	printed xtables.Rules // in iptables
	foreign nft.Key       // in nftables, where our own keys tell enough of all else

	relay RelayID // that it leads to, and on which port; zero for none
	port  uint16
}

// inTable reports whether an object is part of a table.
func inTable(k Key) bool {
	return k.Kind != KindAddress && k.Kind != KindDropPort && k.Kind != KindRelay
}
