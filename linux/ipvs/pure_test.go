// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Wherever the user's bit is, ours lie apart from it and from each other, and a
// number comes back as it went in.
func TestMarks(t *testing.T) {
	for bit := range 32 {
		m := bitsFor(1 << bit)
		all := []uint32{m.masquerade, m.service, m.denied, m.numberMask()}
		for i, a := range all {
			if a == 0 {
				t.Errorf("bit %d: part %d is empty", bit, i)
			}
			for _, b := range all[i+1:] {
				if a&b != 0 {
					t.Errorf("bit %d: 0x%x and 0x%x overlap", bit, a, b)
				}
			}
		}
		for _, via := range []Via{ByMark, ByMarkSNAT} {
			for _, n := range []uint32{1, 77, maxNumber} {
				if got, how := m.parse(m.fwmark(n, via)); got != n || how != via {
					t.Errorf("bit %d: number %d %d comes back as %d %d", bit, n, via, got, how)
				}
			}
		}
		if n, _ := m.parse(m.masquerade); n != 0 {
			t.Errorf("bit %d: a mark of another program is ours", bit)
		}
	}
}

// given has a server of a namespace take a number, and returns its mark.
func given(m *fwmarks, server Key, tenant uint32) (fwmark uint32, err error) {
	err = m.assign(server, tenant)
	id, _ := m.id(server)
	return id.FWMark, err
}

// Numbers are given once each, until they are used up, and again when free.
func TestNumbering(t *testing.T) {
	m := newFWMarks(bitsFor(0))
	server := func(i int) Key { return Key{Kind: kindServer, Via: ByMark, Dst: numbered(i, false).Frontends[0].At} }
	for i := range maxNumber {
		got, err := given(m, server(i), uint32(i))
		if number, _ := m.parse(got); err != nil || number == 0 || m.used[model.IPv4][got] != server(i) {
			t.Fatalf("server %d: %d %v", i, got, err)
		}
	}
	if _, err := given(m, server(maxNumber), maxNumber); err == nil {
		t.Error("more numbers than there are")
	}
	snat := server(0)
	snat.Via = ByMarkSNAT
	if got, err := given(m, snat, 0); err != nil || got&m.masquerade == 0 {
		t.Errorf("with SNAT beside as many without: %#x, %v", got, err)
	}
	six := server(0)
	six.Family = model.IPv6
	if _, err := given(m, six, 0); err != nil {
		t.Errorf("the other family: %v", err)
	}
	was, _ := given(m, server(7), 7)
	m.release(server(7))
	if got, err := given(m, server(maxNumber), maxNumber); err != nil || got != was {
		t.Errorf("got %d %v, want %d, which is free", got, err, was)
	}
}

// Where all numbers are in use, that is known without a search: each op of each Service that lacks one asks, and
// asks again. The median of what a question takes is within 100 times that of one whose answer is known.
func TestNoNumberIsSoonKnown(t *testing.T) {
	m := newFWMarks(bitsFor(0))
	server := func(i int, via Via) Key {
		return Key{Kind: kindServer, Via: via, Dst: numbered(i, false).Frontends[0].At}
	}
	for i := range maxNumber {
		for _, via := range []Via{ByMark, ByMarkSNAT} {
			if err := m.assign(server(i, via), uint32(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	median := func(k Key) time.Duration {
		var took [101]time.Duration
		for i := range took {
			begun := time.Now()
			for range 10 {
				_ = m.assign(k, maxNumber)
			}
			took[i] = time.Since(begun)
		}
		slices.Sort(took[:])
		return took[len(took)/2]
	}
	if known, not := median(server(0, ByMark)), median(server(maxNumber, ByMark)); not > 100*known {
		t.Errorf("that there is no number takes %s, a known one %s", not/10, known/10)
	}
	m.release(server(7, ByMark))
	if err := m.assign(server(maxNumber, ByMarkSNAT), maxNumber); !errors.Is(err, errNoNumber) {
		t.Errorf("a number that is free without SNAT: %v", err)
	}
	if err := m.assign(server(maxNumber, ByMark), maxNumber); err != nil {
		t.Error(err)
	}
}

// manyByMark is a port of externalTrafficPolicy Local with so many external IPs, each of which has a virtual
// server by mark for pods, and one for the host.
func manyByMark(namespace string, block byte, n int) *model.Port {
	all := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.3:8080")}}}
	on := [model.Origins]model.Action{model.FromOutside: {Verdict: model.Drop}, model.FromPod: {Pool: all}, model.FromHost: {Pool: all, SNAT: true}}
	port := &model.Port{ID: model.PortID{Service: model.ServiceName{Namespace: namespace, Name: fmt.Sprint("many-", block)}, Proto: model.TCP}}
	for i := range n {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, block, byte(i >> 8), byte(i)}), 80)
		port.Frontends = append(port.Frontends, model.Frontend{Kind: model.KindExternalIP, At: at, On: on})
	}
	return port
}

// A namespace gets numbers while it has no more than are free, also after a restart, which learns from the
// virtual servers whose they are.
func TestNumbersAreSharedByNamespace(t *testing.T) {
	compiler, host := NewCompiler(Options{}), &model.Host{Salt: 5}
	m := newFWMarks(bitsFor(0))
	type found struct {
		server         Key
		fwmark, tenant uint32
	}
	var kept []found
	take := func(namespace string, block byte, n int) (got int) {
		objects, _ := dataplane.Compile(compiler, host, []*model.Port{manyByMark(namespace, block, n)})
		for k, v := range objects {
			if k.Kind != kindServer || k.Via != ByMark {
				continue
			}
			if fwmark, err := given(m, k, v.tenant()); err == nil {
				got++
				kept = append(kept, found{k, fwmark, v.tenant()})
			} else if !errors.Is(err, errNoNumber) {
				t.Fatal(err)
			}
		}
		return got
	}
	if got := take("evil", 51, 2500) + take("evil", 52, 2500); got != maxNumber/2+1 {
		t.Errorf("one namespace has %d of %d", got, maxNumber)
	}
	if got := take("victim", 53, 1000); got != 1000 {
		t.Errorf("then another one gets %d of 1,000", got)
	}
	m = newFWMarks(bitsFor(0))
	for _, s := range kept {
		m.observed(s.server, s.fwmark)
	}
	for _, s := range kept {
		m.belongs(s.server, s.tenant)
	}
	if got := take("evil", 54, 100); got != 0 {
		t.Errorf("after a restart it gets %d more", got)
	}
	if got := take("victim", 55, 20); got != 20 {
		t.Errorf("after a restart the other one gets %d of 20", got)
	}
}

// What is written for iptables-restore is read back from iptables-save.
func TestTablesComeBackAsWritten(t *testing.T) {
	objects, _ := dataplane.Compile(NewCompiler(Options{}), testWorld().Host, nil)
	var ops []ledger.Op[Key, Value]
	want := map[Key]Value{}
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		if k.Family == model.IPv6 && (k.Kind == KindChain || k.Kind == kindJump) {
			ops, want[k] = append(ops, ledger.Op[Key, Value]{Key: k, New: objects[k]}), objects[k]
		}
	}
	saved := strings.NewReplacer("-I ", "-A ", " 1 -m", " -m").Replace(string(restoreText(model.IPv6, ops)))
	have, err := readAll(model.IPv6, saved)
	if len(want) == 0 || err != nil || !maps.Equal(have, want) {
		t.Errorf("got %v\nwant %v", have, want)
	}
	foreign := strings.ReplaceAll(saved, ownerRule().Comment, "another program")
	if have, err := readAll(model.IPv6, foreign); len(have) > 0 || err != nil {
		t.Errorf("of another program, but ours: %v, %v", have, err)
	}
}

func readAll(f model.Family, text string) (map[Key]Value, error) {
	have := map[Key]Value{}
	err := readTables(f, text, func(k Key, v Value) { have[k] = v })
	return have, err
}

// The rules that we write are all understood by the parser.
func TestNoRuleIsForeign(t *testing.T) {
	objects, _ := dataplane.Compile(NewCompiler(Options{}), testWorld().Host, nil)
	for k, v := range objects {
		for r := range v.Rules.All() {
			if r.Unparsed != "" {
				t.Errorf("%s: %s", k, r)
			}
		}
	}
}

// A jump that lets only old connections in, as while we leave, is read back as
// such, and made a common one in the step that deletes it.
func TestJumpsForOldConnectionsComeBack(t *testing.T) {
	k := Key{Kind: kindJump, Chain: mangleIn}
	leaving, staying := Value{OldOnly: true}, Value{}
	mangle := "*mangle\n-A KUBE-SERVICES " + ownerRule().String() + "\n-A PREROUTING " + mangleIn.jumpRule(true).String() + "\nCOMMIT\n"
	have, err := readAll(model.IPv4, mangle)
	if v, ok := have[k]; !ok || !v.OldOnly || err != nil {
		t.Errorf("read back: %v in %v (%v)", v, have, err)
	}
	got := string(restoreText(model.IPv4, []ledger.Op[Key, Value]{{Verb: ledger.Replace, Key: k, Old: leaving, New: staying}}))
	want := "*mangle\n-I PREROUTING 1 " + mangleIn.jumpRule(false).String() + "\n-D PREROUTING " + mangleIn.jumpRule(true).String() + "\nCOMMIT\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Packets are claimed last of all, and no longer claimed first of all: what
// claims them has everything that serves them then.
func TestNothingIsClaimedBeforeItIsServed(t *testing.T) {
	w := testWorld()
	c := NewCompiler(Options{})
	objects, _ := dataplane.Compile(c, w.Host, w.Ports())
	var ops []ledger.Op[Key, Value]
	for k, v := range objects {
		if c.Rank(k) >= c.Rank(Key{Kind: kindJump}) && k.Kind != kindJump {
			t.Errorf("%s does not come before the claims", k)
		}
		if batchOf(k.Kind) == batchRules {
			ops = append(ops, ledger.Op[Key, Value]{Key: k, New: v}, ledger.Op[Key, Value]{Verb: ledger.Delete, Key: k, Old: v})
		}
	}
	var tables []string
	for line := range strings.Lines(string(restoreText(model.IPv4, ops))) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			tables = append(tables, strings.TrimSpace(name))
		}
	}
	if want := strings.Fields("filter nat mangle mangle nat filter"); !slices.Equal(tables, want) {
		t.Errorf("the tables are written in the order %v, not %v", tables, want)
	}
}

func testWorld() conformance.Random { return conformance.RandomWorld(conformance.NewRand(5)) }

// The plan has every part, and schedulers and flags reach it.
func TestPlan(t *testing.T) {
	w := testWorld()
	c := config.Default()
	c.IPVS.Scheduler = "mh"
	p := plan(&c, w.Host, w.Ports())
	for _, part := range []string{
		"# ipset restore\n", "create KUBE-CLUSTER-IP hash:ip,port family inet maxelem 16777216 skbinfo\n", "create KUBE-6-",
		"# iptables-restore --noflush\n*filter\n", "*mangle\n", "# ip6tables-restore --noflush\n", "link add kube-ipvs0 type dummy\n",
		"# ipvsadm -R\n", "-s mh", "-b mh-fallback,mh-port",
	} {
		if !strings.Contains(p.Native, part) {
			t.Errorf("%q is missing in\n%s", part, p.Native)
		}
	}
}

// FuzzReadTables reads anything: what is taken for ours has our rule, or is empty
// and led to. A rule with that comment that does something is another program's.
func FuzzReadTables(f *testing.F) {
	objects, _ := dataplane.Compile(NewCompiler(Options{}), testWorld().Host, nil)
	_, tables, _ := strings.Cut(Script(Options{}, objects), "# iptables-restore --noflush\n")
	tables, _, _ = strings.Cut(tables, "\n# ")
	f.Add(tables)
	f.Add("*nat\n-A \n:X - [0:0]\n-A POSTROUTING\nCOMMIT\n")
	f.Add("*filter\n-A KUBE-IPVS-FILTER -j DROP\n-A KUBE-IPVS-FILTER " + ownerRule().String() + "\nCOMMIT\n")
	f.Add("*filter\n-A KUBE-IPVS-FILTER " + ownerRule().String() + " -j DROP\nCOMMIT\n")
	f.Add("*filter\n-A INPUT " + filterIn.jumpRule(false).String() + "\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		have, err := readAll(model.IPv4, text)
		if err != nil {
			return
		}
		for k, v := range have {
			if k.Kind != KindChain {
				continue
			}
			rules := slices.Collect(v.Rules.All())
			_, led := have[Key{Kind: kindJump, Chain: k.Chain}]
			if !slices.ContainsFunc(rules, ownerRule().Equal) && (len(rules) > 0 || !led) {
				t.Errorf("%s is not ours: %s", k, v.Rules)
			}
		}
	})
}

// What a node port denies clients stays denied, whichever of its objects are there already or
// still: its address is the node's own, where IPVS needs no mark.
func TestNodePortsAtEachWrite(t *testing.T) {
	at := netip.MustParseAddrPort
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at("10.244.2.2:80")}}}
	balance, drop := model.Action{Pool: pool}, model.Action{Verdict: model.Drop}
	host := testWorld().Host
	port := &model.Port{
		ID: model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP, Family: model.IPv4},
		Frontends: []model.Frontend{
			{Kind: model.KindNodePort, At: at("0.0.0.0:30080"), On: [...]model.Action{model.FromPod: balance, model.FromHost: balance, model.FromOutside: drop}},
		},
	}
	c := NewCompiler(Options{})
	objects, _ := dataplane.Compile(c, host, []*model.Port{port})
	base, _ := dataplane.Compile(c, host, nil)
	var keys []Key
	for k := range objects {
		if _, ok := base[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	slices.SortStableFunc(keys, func(a, b Key) int { return c.Rank(a) - c.Rank(b) })
	if len(keys) < 3 {
		t.Fatalf("objects: %v", keys)
	}
	for _, k := range keys {
		base[k] = objects[k]
		outside := oracle.Packet{Src: netip.MustParseAddr("192.0.2.77"), Dst: netip.AddrPortFrom(host.IPs[0], 30080), Proto: model.TCP, Iface: "eth0"}
		if got := NewSim(Options{}, base, host).Decide(outside); got.Fate == oracle.Forward {
			t.Errorf("after %s a client from outside reaches %v", k, got.Endpoints)
		}
	}
}

// A Service has the scheduler for weights before it has any, and keeps the one it has: the
// kernel refuses connections while it exchanges it.
func TestSchedulerIsNotExchanged(t *testing.T) {
	port := func(weights ...uint16) *model.Port {
		pool := &model.Pool{}
		for i, w := range weights {
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), 80), Weight: w})
		}
		balance := model.Action{Verdict: model.Balance, Pool: pool}
		return &model.Port{
			ID:        model.PortID{Service: model.ServiceName{Namespace: "ns", Name: "a"}, Proto: model.TCP, Family: model.IPv4},
			Frontends: []model.Frontend{{Kind: model.KindClusterIP, At: netip.MustParseAddrPort("10.96.0.1:80"), On: [model.Origins]model.Action{balance, balance, balance}}},
		}
	}
	c := NewCompiler(Options{Weighted: true})
	server := func(c *Compiler, p *model.Port) (v Value) {
		objects, gaps := dataplane.Compile(c, testWorld().Host, []*model.Port{p})
		for k, o := range objects {
			if k.Kind == kindServer {
				v = o
			}
		}
		if len(gaps) > 0 {
			t.Errorf("gaps: %v", gaps)
		}
		return v
	}
	same, differ := server(c, port(0, 0)), server(c, port(1, 2))
	if same.Scheduler != "wrr" || same.Scheduler != differ.Scheduler || c.Equal(same, differ) {
		t.Errorf("without weights %+v, with weights %+v", same, differ)
	}
	had := same
	had.Scheduler = "rr" // kube-proxy's
	if !c.Equal(had, same) || c.Equal(had, differ) {
		t.Error("an existing server has to get another scheduler with weights, and only then")
	}
	if without := server(NewCompiler(Options{Weighted: true, Schedulers: []string{"rr"}}), port(0, 0)); without.Scheduler != "rr" {
		t.Errorf("a kernel without wrr gets %s", without.Scheduler)
	}
}
