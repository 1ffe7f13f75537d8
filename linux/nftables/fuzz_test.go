// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// FuzzDump feeds the reader of dumps with bytes: it must neither panic nor run
// forever, and every key that it makes must be one that can be written.
func FuzzDump(f *testing.F) {
	objects := compile(f, testHost, testPorts()...)
	f.Add(table.Encode(creation(compilePort(awkwardPort("n", "s", "p"))), 1)) // all at once would make every input large
	type kind struct {
		of  nft.Kind
		set *nft.Set
	}
	seen := map[kind]bool{}
	for _, k := range table.Sorted(objects) {
		if one := (kind{k.Kind, k.Set}); !seen[one] {
			seen[one] = true
			f.Add(table.Encode([]nft.Op{{Verb: ledger.Create, Key: k, New: objects[k]}}, 1))
		}
	}
	f.Fuzz(func(t *testing.T, dump []byte) {
		for _, family := range model.Families() {
			var ops []nft.Op
			table.Decode(family, dump, func(k nft.Key, v nft.Value) {
				_ = k.String()
				ops = append(ops, nft.Op{Verb: ledger.Delete, Key: k, Old: v})
			})
			table.Encode(ops, 1)
		}
	})
}

// FuzzScript compiles a port with any names: what is written must stay on its
// line and between its quotes, and names must be ones that nft can read.
func FuzzScript(f *testing.F) {
	for _, name := range awkward {
		f.Add("default", name, name)
	}
	plain := table.Script(compilePort(awkwardPort("n", "s", "p")))
	f.Fuzz(func(t *testing.T, namespace, service, name string) {
		objects := compilePort(awkwardPort(namespace, service, name))
		script := table.Script(objects)
		if got, want := strings.Count(script, "\n"), strings.Count(plain, "\n"); got != want {
			t.Fatalf("%d lines, %d with plain names:\n%s", got, want, script)
		}
		if got, want := strings.Count(script, `"`), strings.Count(plain, `"`); got != want {
			t.Fatalf("%d quotes, %d with plain names:\n%s", got, want, script)
		}
		for k, v := range objects {
			if len(k.Name()) > 255 || v.Body != nil && len(v.Body.Comment) > 127 {
				t.Fatalf("%s is too long", k)
			}
		}
	})
}

// compilePort returns the objects of a port alone: those that all ports share have no
// names of Services in them.
func compilePort(p *model.Port) map[nft.Key]nft.Value {
	objects := map[nft.Key]nft.Value{}
	NewCompiler(Options{}).Port(testHost, p, func(k nft.Key, v nft.Value) { objects[k] = v })
	return objects
}

var awkward = []string{
	"", "web", `"`, `"; }`, "\n", "a\nflush ruleset", "$(id)", "`id`", `\`, `\"`, "\x00", "\x1b[31m", "ü", "日本語", "\xff\xfe",
	"@slots", "{", "}", "#", ";", strings.Repeat("x", 127), strings.Repeat("x", 128), strings.Repeat("y", 300), strings.Repeat("ü", 300), "a b", "../../x", "*",
}

func awkwardPort(namespace, service, name string) *model.Port {
	p := withAffinity(port("p", front(model.KindClusterIP, "10.96.0.1:80", onAll(balance(endpoints("10.244.1.2:80"), false)))), 1)
	p.ID.Service = model.ServiceName{Namespace: namespace, Name: service}
	p.ID.Name = name
	return p
}

// What is encoded is well-formed: messages and attributes end where they say.
func TestEncodingIsWellFormed(t *testing.T) {
	objects := compile(t, testHost, testPorts()...)
	buf := table.Encode(creation(objects), 7)
	seq, size := uint32(7), 0
	for m, err := range netlink.Messages(buf) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Seq != seq {
			t.Fatalf("message %d has the number %d", seq, m.Seq)
		}
		seq++
		size += 16 + len(m.Body)
		if m.Type>>8 == 10 { // NFNL_SUBSYS_NFTABLES
			checkAttrs(t, m.Body[4:])
		}
	}
	if size != len(buf) {
		t.Errorf("%d bytes in messages, %d in all", size, len(buf))
	}
}

func checkAttrs(t *testing.T, b []byte) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 4 {
			t.Fatalf("%d bytes are left", len(b))
		}
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) || len(b)%4 != 0 {
			t.Fatalf("an attribute of %d bytes in %d", size, len(b))
		}
		if kind&0x8000 != 0 { // NLA_F_NESTED
			checkAttrs(t, b[4:size])
		}
		b = b[(size+3)&^3:]
	}
}
