// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

const someMark = 1 << 14

// TestCorpus judges the compiler, through the simulator, by every scenario and
// by random worlds.
func TestCorpus(t *testing.T) {
	judge(t, func(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
		return NewSim(objects, host).Decide
	})
}

// TestCorpusInNFT judges the same objects as they are in nftables.
func TestCorpusInNFT(t *testing.T) { judge(t, nftSim) }

func judge(t *testing.T, sim func(map[Key]Value, *model.Host) func(oracle.Packet) oracle.Outcome) {
	conformance.Run(t, conformance.Suite[Key, Value]{
		Mode: "userspace", Compiler: NewCompiler(someMark), Sim: sim, Golden: listing,
		Excuse: func(_ *model.Host, p oracle.Packet, want, got oracle.Outcome) string {
			if p.Proto == model.SCTP && want.Fate == oracle.Drop && got.Fate == oracle.Reject {
				return "SCTP is rejected where other protocols are dropped"
			}
			return ""
		},
	})
}

// listing renders objects for people, one a line: what ports add.
func listing(objects map[Key]Value) string {
	var b strings.Builder
	for _, k := range sorted(objects, kindRelay, kindEntry) {
		v := objects[k]
		if k.Kind == kindEntry {
			fmt.Fprintf(&b, "%s\n", entryText(k, v.To))
			continue
		}
		fmt.Fprintf(&b, "%s:", k)
		for _, e := range v.Policy.On[model.FromOutside].Endpoints {
			fmt.Fprintf(&b, " %s", e)
		}
		if v.Policy.SessionAffinity > 0 {
			fmt.Fprintf(&b, " affinity %s", v.Policy.SessionAffinity)
		}
		for _, e := range v.Policy.Draining {
			fmt.Fprintf(&b, " draining %s", e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func entryText(k Key, to Target) string {
	where := "to " + k.At.Addr().String()
	if k.At.Addr().IsUnspecified() {
		where = "to this host"
	}
	if k.At.Port() != 0 {
		where = fmt.Sprintf("%s %s port %d", where, k.Proto, k.At.Port())
	}
	if k.From.IsValid() {
		where = fmt.Sprintf("from %s %s", k.From, where)
	}
	do := [...]string{toRelay: "relay " + to.Relay.String(), Reject: "reject", Drop: "drop", Accept: "accept"}[to.Do]
	return fmt.Sprintf("%s %s: %s", k.Chain, where, do)
}
