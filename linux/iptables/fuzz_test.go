// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

var awkward = []string{
	"", "web", `"`, `" -j ACCEPT`, "\n", "a\nCOMMIT\n*nat", "$(id)", "`id`", `\`, `\"`, "\x00", "\x1b[31m", "ü", "日本語", "\xff\xfe",
	"-j", "#", ";", strings.Repeat("x", 255), strings.Repeat("y", 300), strings.Repeat(`\`, 300), "a b", "!", "'",
}

func awkwardPort(namespace, service, name string) *model.Port {
	at := netip.MustParseAddrPort("10.96.0.1:80")
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at, Local: true}}}
	act := model.Action{Pool: pool, SNAT: true}
	return &model.Port{
		ID: model.PortID{Service: model.ServiceName{Namespace: namespace, Name: service}, Name: name, Proto: model.TCP}, SessionAffinity: 1, HealthPort: 1,
		Frontends: []model.Frontend{
			{At: at, On: [...]model.Action{act, act, act}},
			{Kind: model.KindLoadBalancer, At: at, Restricted: true, Allow: []netip.Prefix{netip.PrefixFrom(at.Addr(), 32)}, On: [...]model.Action{act, act, {Verdict: model.Drop}}},
		},
	}
}

// FuzzScript compiles a port with any names: what is written has the lines that
// plain names give, and each rule is read back as it was meant.
func FuzzScript(f *testing.F) {
	for _, name := range awkward {
		f.Add("default", name, name)
	}
	c := NewCompiler(Options{})
	compile := func(p *model.Port) map[Key]Value { // what all ports share has no names in it
		objects := map[Key]Value{}
		c.Port(benchHost, p, func(k Key, v Value) { objects[k] = v })
		return objects
	}
	lines := strings.Count(Script(compile(awkwardPort("n", "s", "p"))), "\n")
	f.Fuzz(func(t *testing.T, namespace, service, name string) {
		objects := compile(awkwardPort(namespace, service, name))
		script := Script(objects)
		if got := strings.Count(script, "\n"); got != lines {
			t.Fatalf("%d lines, %d with plain names:\n%s", got, lines, script)
		}
		for k, v := range objects {
			for r := range v.All() {
				if r.Unparsed != "" {
					t.Fatalf("%s: %q is not understood", k, r.Unparsed)
				}
			}
			if back := xtables.List(slices.Collect(v.All())...); back != v {
				t.Fatalf("%s: %q is read as %q", k, v, back)
			}
			if strings.ContainsFunc(v.String(), func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
				t.Fatalf("%q is not plain text", v)
			}
		}
	})
}

// FuzzSave feeds the reader of iptables-save with anything: it must not panic,
// and what it takes for ours must be what can be written again.
func FuzzSave(f *testing.F) {
	f.Add("*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SVC-NPX46M4PTMTKRN6Y ! -s 10.0.0.0/8 -m mark ! --mark 0x1/0x1 -j ACCEPT\nCOMMIT\n")
	f.Add("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.0.0.1/32 -m recent --rcheck --seconds 1 --name a -m statistic --probability 1e-9\n-A KUBE-SERVICES \"\nCOMMIT\n*")
	f.Fuzz(func(t *testing.T, save string) {
		r, err := read(model.IPv4, save)
		if err != nil {
			return
		}
		for k, v := range r.objects {
			if k.Rank == rankChain || k.unexpected() {
				continue
			}
			rules := slices.Collect(v.All())
			if len(rules) != 1 || xtables.List(rules...) != v || position(k.chainID, rules[0]) != k.Position {
				t.Fatalf("%s: %q comes back as %q", k, v, rules)
			}
		}
		again, err := read(model.IPv4, save)
		if err != nil || !maps.Equal(r.objects, again.objects) {
			t.Fatalf("read again: %v, then %v (%v)", r.objects, again.objects, err)
		}
	})
}

// What is compiled is read back as it was written.
func TestScriptIsReadBack(t *testing.T) {
	objects, _ := dataplane.Compile(NewCompiler(Options{Families: []model.Family{model.IPv4}}), benchHost, []*model.Port{awkwardPort("n", "s", "p")})
	text, _, _ := strings.Cut(Script(objects), "# ip6tables-restore")
	text = regexp.MustCompile(`-I (\w+) \d+ `).ReplaceAllString(text, "-A $1 ")
	for _, t := range []string{"filter", "nat"} {
		text = strings.Replace(text, "*"+t+"\n", "*"+t+"\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n", 1)
	}
	r, err := read(model.IPv4, text)
	if err != nil || !maps.Equal(r.objects, objects) {
		t.Errorf("%v: %d objects of %d", err, len(r.objects), len(objects))
	}
}
