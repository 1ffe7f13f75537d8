// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// eachKind runs a test with either kind of table.
func eachKind(t *testing.T, test func(t *testing.T, k tableKind)) {
	for i, name := range []string{"iptables", "nftables"} {
		t.Run(name, func(t *testing.T) {
			onNode(t, tableKinds()[i], func(t *testing.T) { test(t, tableKinds()[i]) })
		})
	}
}

// onNode runs a test inside the namespace of a node, on its thread.
func onNode(t *testing.T, k tableKind, test func(t *testing.T)) {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	n, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	err = n.Do(netns.Node, func() error {
		table, err := k.open(t.Context())
		if err == nil {
			err = errors.Join(k.try(t.Context(), table, model.IPv4), table.Close())
		}
		if err != nil {
			t.Logf("skipped: %v", err)
			return nil
		}
		test(t)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// plane is a backend and its driver.
type plane struct {
	dataplane.Backend
	driver *Driver
	t      *testing.T
}

func start(t *testing.T, k tableKind, ports ...*model.Port) plane {
	t.Helper()
	table, err := k.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := open(table, relay.Options{Mark: someMark})
	return begin(t, plane{dataplane.New(NewCompiler(someMark), d), d, t}, ports...)
}

// begin gives a backend its ports.
func begin(t *testing.T, p plane, ports ...*model.Port) plane {
	t.Helper()
	if err := p.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.SetHost(&model.Host{
		Pods:      model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}},
	})
	for _, port := range ports {
		p.Update([]model.Delta{{New: port}})
	}
	return p
}

func (p plane) sync() dataplane.Work {
	p.t.Helper()
	w, err := p.Sync(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

func (p plane) stop() {
	p.t.Helper()
	if err := p.Close(); err != nil {
		p.t.Error(err)
	}
}

// rules lists the nat table of both families, and all of nftables, sorted.
func rules(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, tool := range []string{"iptables-save -t nat", "ip6tables-save -t nat", "nft -s list ruleset"} {
		out, err := exec.Command("sh", "-c", tool).Output()
		if err != nil {
			t.Fatal(err)
		}
		table := ""
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "table ") {
				table = line
			}
			// The order of elements means nothing.
			line = strings.TrimRight(strings.TrimPrefix(line, "elements = {"), ", }")
			if !strings.HasPrefix(line, "#") && !strings.Contains(table, " nat {") { // that is iptables'
				all = append(all, tool+": "+table+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(all)
	return all
}

func do(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// web is a port with everything: two pools, source ranges, a node port and
// refusal.
func web() *model.Port {
	all := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.2:80")}, {Addr: netip.MustParseAddrPort("10.244.2.2:80")}}}
	local := &model.Pool{Endpoints: all.Endpoints[:1]}
	policies := map[*model.Pool]model.TrafficPolicy{local: model.Local}
	front := func(kind model.Kind, at string, pools ...*model.Pool) model.Frontend {
		f := model.Frontend{Kind: kind, At: netip.MustParseAddrPort(at)}
		for i := range f.On {
			f.On[i] = model.Action{Pool: pools[i], Policy: policies[pools[i]]}
			if pools[i] == nil {
				f.On[i] = model.Action{Verdict: model.Drop}
			}
		}
		return f
	}
	lb := front(model.KindLoadBalancer, "203.0.113.10:80", all, all, local)
	lb.Restricted, lb.Allow = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")}
	return &model.Port{
		ID: model.PortID{Service: model.ServiceName{Namespace: "default", Name: "web"}, Name: "http", Proto: model.TCP},
		Frontends: []model.Frontend{
			front(model.KindClusterIP, "10.96.0.10:80", all, all, all), lb,
			front(model.KindNodePort, "0.0.0.0:30080", all, all, nil),
		},
	}
}

func dns() *model.Port {
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::2]:53")}}}
	act := model.Action{Pool: pool}
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "kube-system", Name: "dns"}, Proto: model.UDP, Family: model.IPv6},
		Frontends: []model.Frontend{{Kind: model.KindClusterIP, At: netip.MustParseAddrPort("[fd00:10:96::a]:53"), On: [...]model.Action{act, act, act}}},
	}
}

// A new process finds its rules, changes none, and listens where they lead.
func TestRestart(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		p := start(t, k, web(), dns())
		p.sync()
		before := rules(t)
		if drift, err := p.Audit(t.Context()); err != nil || drift != 0 {
			t.Errorf("drift %d, %v", drift, err)
		}
		p.stop()
		p = start(t, k, web(), dns())
		defer p.stop()
		w := p.sync()
		if got := rules(t); !slices.Equal(got, before) {
			t.Errorf("a restart changed rules:\n%s\nbefore:\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
		}
		if want := 3 + 2; w.Ops != want { // relays and sinks, which ended with the process
			t.Errorf("%d ops, want %d", w.Ops, want)
		}
		if drift, err := p.Audit(t.Context()); err != nil || drift != 0 {
			t.Errorf("after a restart: drift %d, %v", drift, err)
		}
	})
}

// The mode needs CAP_NET_ADMIN alone, which is what units and DaemonSets give it: every object is in place, and so
// every Service is in effect.
func TestNeedsNoOtherCapability(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		restore, err := withCapability(unix.CAP_NET_ADMIN)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := restore(); err != nil {
				t.Error(err)
			}
		}()
		p := start(t, k, web(), dns())
		defer p.stop()
		p.sync()
	})
}

// withCapability takes all capabilities but one from the calling thread, until restore gives them back.
func withCapability(keep int) (restore func() error, err error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all, one [2]unix.CapUserData
	if err := unix.Capget(&head, &all[0]); err != nil {
		return nil, err
	}
	one = all
	for i := range one {
		one[i].Effective = 0
	}
	one[keep/32].Effective = 1 << (keep % 32)
	return func() error { return unix.Capset(&head, &all[0]) }, unix.Capset(&head, &one[0])
}

// stopWithoutItsPort programs a Service and ends; the port of its relay, to which rules lead,
// is another program's then.
func stopWithoutItsPort(t *testing.T, k tableKind) (taken netip.AddrPort, l net.Listener) {
	t.Helper()
	p := start(t, k, web())
	p.sync()
	for _, r := range p.driver.relays.open {
		taken = r.Addr()
	}
	p.stop()
	l, err := net.Listen("tcp", taken.String())
	if err != nil {
		t.Fatal(err)
	}
	return taken, l
}

// rulesTo are the rules that lead to an address.
func rulesTo(t *testing.T, a netip.AddrPort) []string {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r string) bool {
		return !strings.HasSuffix(r, " "+a.String()) && !strings.HasSuffix(r, fmt.Sprintf(" %s . %d", a.Addr(), a.Port()))
	})
}

// A port that another program took while no proxy ran is released, and the rules
// follow.
func TestRestartWithoutItsPort(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		taken, l := stopWithoutItsPort(t, k)
		defer l.Close()
		p := start(t, k, web())
		defer p.stop()
		p.sync()
		for _, r := range rulesTo(t, taken) {
			t.Errorf("still there: %s", r)
		}
		if drift, err := p.Audit(t.Context()); err != nil || drift != 0 {
			t.Errorf("drift %d, %v", drift, err)
		}
	})
}

// failingTable fails its first write.
type failingTable struct {
	table
	failed bool
}

func (f *failingTable) Edit(ctx context.Context, family model.Family, edits []edit) error {
	if !f.failed {
		f.failed = true
		return errors.New("no memory")
	}
	return f.table.Edit(ctx, family, edits)
}

// A relay that could not bind its port of the earlier run, and whose rules could not be
// rewritten, is not taken for one that they lead to.
func TestRestartWithoutItsPortAndAFailure(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		taken, l := stopWithoutItsPort(t, k)
		defer l.Close()
		table, err := k.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := open(&failingTable{table: table}, relay.Options{Mark: someMark})
		two := begin(t, plane{dataplane.New(NewCompiler(someMark), d), d, t}, web())
		defer two.stop()
		for range 3 {
			_, _ = two.Sync(t.Context())
		}
		for _, r := range rulesTo(t, taken) {
			t.Errorf("a rule leads to another program: %s", r)
		}
	})
}

// Relays listen where rules of an earlier layout lead, which numbered the pools of a port in
// the order of its frontends: clients may wait there.
func TestRelaysOfAnEarlierLayout(t *testing.T) {
	at := func(kind model.Kind, to string, a model.Action) model.Frontend {
		return model.Frontend{Kind: kind, At: netip.MustParseAddrPort(to), On: [...]model.Action{a, a, a}}
	}
	one := []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.2:80")}}
	cluster := model.Action{Pool: &model.Pool{Endpoints: append(one, model.Endpoint{Addr: netip.MustParseAddrPort("10.244.2.2:80")})}}
	local := model.Action{Pool: &model.Pool{Endpoints: one}, Policy: model.Local}
	merged := model.Action{Pool: local.Pool}
	for name, tt := range map[string]struct {
		frontends []model.Frontend
		numbers   []model.TrafficPolicy // what the earlier layout called the relay of each frontend
		moved     int                   // frontends that lead to another port than before
	}{
		"as numbered": {[]model.Frontend{at(model.KindClusterIP, "10.96.0.10:80", cluster), at(model.KindExternalIP, "203.0.113.1:80", local)}, []model.TrafficPolicy{0, 1}, 0},
		"local first": {[]model.Frontend{at(model.KindClusterIP, "10.96.0.10:80", local), at(model.KindExternalIP, "203.0.113.1:80", cluster)}, []model.TrafficPolicy{0, 1}, 0},
		"local alone": {[]model.Frontend{at(model.KindClusterIP, "10.96.0.10:80", local)}, []model.TrafficPolicy{0}, 0},
		"one pool":    {[]model.Frontend{at(model.KindClusterIP, "10.96.0.10:80", merged), at(model.KindExternalIP, "203.0.113.1:80", local)}, []model.TrafficPolicy{0, 0}, 1},
		"one local pool": {
			[]model.Frontend{at(model.KindClusterIP, "10.96.0.10:80", local), at(model.KindExternalIP, "203.0.113.1:80", merged), at(model.KindExternalIP, "203.0.113.2:80", merged)},
			[]model.TrafficPolicy{0, 0, 0},
			1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, k tableKind) {
				port := &model.Port{ID: web().ID, Frontends: tt.frontends}
				earlier := &model.Port{ID: port.ID, Frontends: slices.Clone(tt.frontends)}
				for i := range earlier.Frontends {
					for o := range earlier.Frontends[i].On {
						earlier.Frontends[i].On[o].Policy = tt.numbers[i]
					}
				}
				p := start(t, k, earlier)
				p.sync()
				before := p.driver.rules
				p.stop()
				p = start(t, k, port)
				defer p.stop()
				p.sync()
				moved := 0
				for _, f := range port.Frontends {
					entry := Key{Kind: kindEntry, Chain: chainHost, Proto: model.TCP, At: f.At}
					rule := p.driver.rules[entry]
					if before[entry].port != rule.port {
						moved++
					}
					r, pool := p.driver.relays.open[rule.relay], f.On[model.FromHost].Pool
					if r == nil || r.Addr().Port() != rule.port || len(r.policy.On[model.FromHost].Endpoints) != len(pool.Endpoints) {
						t.Errorf("%s: the rule leads to port %d, relay %+v", f.At, rule.port, r)
					}
				}
				if moved != tt.moved {
					t.Errorf("%d frontends lead to another port than before, want %d", moved, tt.moved)
				}
				if drift, err := p.Audit(t.Context()); drift != 0 || err != nil {
					t.Errorf("drift %d, %v", drift, err)
				}
			})
		})
	}
}

// What others do to our chains is undone; what they have of their own stays,
// also when ours is removed.
func TestExternalChanges(t *testing.T) {
	onNode(t, tableKinds()[0], func(t *testing.T) {
		do(t, "iptables -t nat -N FOREIGN && iptables -t nat -A PREROUTING -p tcp --dport 99 -j FOREIGN && ip addr add 169.254.84.2/32 dev lo")
		foreign := rules(t)
		p := start(t, tableKinds()[0], web(), dns())
		p.sync()
		before := rules(t)
		if disturbed, err := p.Disturbed(t.Context()); disturbed || err != nil {
			t.Errorf("no other program: %t, %v", disturbed, err)
		}
		for _, harm := range []string{
			"iptables -t nat -D KUBE-PORTALS-HOST 1",
			"iptables -t nat -F KUBE-PORTALS-IN",
			"iptables -t nat -A KUBE-PORTALS-HOST -p tcp --dport 1234 -j RETURN",
			"iptables -t nat -A KUBE-PORTALS-GUARD -j ACCEPT; iptables -t nat -A KUBE-PORTALS-GUARD -j ACCEPT",
			"iptables -t nat -D PREROUTING 1; iptables -t nat -I PREROUTING 1 -j KUBE-PORTALS-IN",
			"iptables -t nat -R KUBE-PORTALS-HOST 1 -d 10.96.0.10/32 -p tcp -m comment --comment default/web:http -m tcp --dport 80 -j DNAT --to-destination 169.254.84.1:7",
			"ip addr del 169.254.84.1/32 dev lo",
			"iptables -t nat -F PREROUTING; iptables -t nat -F KUBE-PORTALS-CONTAINER; iptables -t nat -A PREROUTING -p tcp --dport 99 -j FOREIGN",
		} {
			do(t, harm)
			if disturbed, err := p.Disturbed(t.Context()); err != nil || !disturbed && !strings.HasPrefix(harm, "ip ") {
				t.Errorf("%s: noticed %t, %v", harm, disturbed, err)
			}
			if drift, err := p.Audit(t.Context()); err != nil || drift == 0 {
				t.Errorf("%s: drift %d, %v", harm, drift, err)
			}
			p.sync()
			if got := rules(t); !slices.Equal(got, before) {
				t.Errorf("%s: not repaired:\n%s", harm, strings.Join(got, "\n"))
			}
		}
		if has, err := hasRelayAddr(model.IPv4); !has || err != nil {
			t.Errorf("the shelter: %t, %v", has, err)
		}
		if err := p.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		p.stop()
		if got := rules(t); fmt.Sprint(ours(got)) != fmt.Sprint(ours(foreign)) {
			t.Errorf("after the removal:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(foreign, "\n"))
		}
		out, _ := exec.Command("ip", "-o", "addr", "show", "dev", "lo").Output()
		if strings.Contains(string(out), relayAddr(model.IPv4).String()+"/") || !strings.Contains(string(out), "169.254.84.2/") {
			t.Errorf("addresses of lo: %s", out)
		}
	})
}

// ours leaves out the kernel's own chains, which come with the first rule.
func ours(all []string) (rest []string) {
	for _, l := range all {
		if !strings.Contains(l, " ACCEPT [") && !strings.HasSuffix(l, "*nat") && !strings.HasSuffix(l, "COMMIT") {
			rest = append(rest, l)
		}
	}
	return rest
}

// A change of endpoints is one op and touches no rule.
func TestEndpointsCostNoRules(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		old := dns()
		p := start(t, k, old)
		defer p.stop()
		p.sync()
		now := dns()
		pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::3]:53")}}}
		for i := range now.Frontends[0].On {
			now.Frontends[0].On[i].Pool = pool
		}
		p.Update([]model.Delta{{Old: old, New: now}})
		if w := p.sync(); w.Ops != 1 {
			t.Errorf("%d ops", w.Ops)
		}
		if disturbed, err := p.Disturbed(t.Context()); disturbed || err != nil {
			t.Errorf("rules were written: %t, %v", disturbed, err)
		}
	})
}

// A relay whose listening socket another program has closed is drift, and listens again at
// its port; what it has open continues.
func TestListenerClosedByOthers(t *testing.T) {
	onNode(t, tableKinds()[0], func(t *testing.T) {
		p := start(t, tableKinds()[0], toEcho(t))
		defer p.stop()
		p.sync()
		if drift, err := p.Audit(t.Context()); drift != 0 || err != nil {
			t.Fatalf("before: drift %d, %v", drift, err)
		}
		open := p.call()
		defer open.Close()
		ports := map[netip.AddrPort]bool{}
		for _, r := range p.driver.relays.open {
			ports[r.Addr()] = true
			do(t, fmt.Sprintf("ss -KHtln src %s; ! ss -Htln src %s | grep .", r.Addr(), r.Addr()))
		}
		if drift, err := p.Audit(t.Context()); drift != len(ports) || err != nil {
			t.Errorf("drift %d, %v, want %d", drift, err, len(ports))
		}
		p.sync()
		for _, r := range p.driver.relays.open {
			if !ports[r.Addr()] || !r.Listening() {
				t.Errorf("%s: listens %t, ports before %v", r.Addr(), r.Listening(), ports)
			}
		}
		_ = p.call().Close()
		if err := echoes(open); err != nil {
			t.Errorf("an open connection: %v", err)
		}
		if drift, err := p.Audit(t.Context()); drift != 0 || err != nil {
			t.Errorf("after: drift %d, %v", drift, err)
		}
	})
}

// A relay whose rules have not gone yet is not deleted, and is as soon as they have.
func TestARelayInUseStays(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		p := start(t, k, web())
		defer p.stop()
		p.sync()
		d := p.driver
		var relays, entries []ledger.Op[Key, Value]
		for key, have := range d.rules {
			if have.relay != (RelayID{}) {
				entries = append(entries, ledger.Op[Key, Value]{Verb: ledger.Delete, Key: key})
			}
		}
		for id := range d.relays.open {
			relays = append(relays, ledger.Op[Key, Value]{Verb: ledger.Delete, Key: Key{Kind: kindRelay, Family: id.Port().Family, Relay: id}})
		}
		if len(relays) == 0 || len(entries) < len(relays) {
			t.Fatalf("%d relays, %d entries", len(relays), len(entries))
		}
		for i, err := range d.Commit(t.Context(), relays) {
			if err == nil || d.relays.open[relays[i].Key.Relay] == nil {
				t.Errorf("%s was deleted while rules lead to it: %v", relays[i].Key, err)
			}
		}
		if err := errors.Join(d.Commit(t.Context(), slices.Concat(entries, relays))...); err != nil || len(d.relays.open)+len(d.users) > 0 {
			t.Errorf("%v; %d relays and users of %d are left", err, len(d.relays.open), len(d.users))
		}
	})
}

// A namespace whose ports want all that the system has for relays leaves some to others, also
// after a restart, which keeps those that it has.
func TestRelaysOfANamespaceLeavePorts(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		const first, places = 40000, 16
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, first+places-1), 0); err != nil {
			t.Fatal(err)
		}
		named := func(namespace string, i int) *model.Port {
			port := web()
			port.ID.Service = model.ServiceName{Namespace: namespace, Name: fmt.Sprint("web-", i)}
			port.Frontends = port.Frontends[:1]
			port.Frontends[0].At = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(len(namespace)), byte(i)}), 80)
			return port
		}
		var ports []*model.Port
		for i := range 2 * places {
			ports = append(ports, named("evil", i))
		}
		all := append(slices.Clone(ports), named("shop", 0), named("shop", 1))
		p := start(t, k, ports...)
		open := func(p plane) map[string]int {
			n := map[string]int{}
			for id := range p.driver.relays.open {
				n[id.Port().Service.Namespace]++
			}
			return n
		}
		check := func(p plane, want map[string]int) {
			t.Helper()
			_, _ = p.Sync(t.Context()) // those that failed a moment ago are not tried again
			if got := open(p); !maps.Equal(got, want) {
				t.Errorf("relays %v, want %v", got, want)
			}
			refused := p.Health().Failures
			for id, err := range refused {
				if id.Service.Namespace != "evil" || !strings.Contains(err.Error(), `by namespace "evil"`) {
					t.Errorf("%s: %v", id, err)
				}
			}
			if len(refused) != 2*places-want["evil"] {
				t.Errorf("%d ports are refused", len(refused))
			}
		}
		check(p, map[string]int{"evil": places / 2})
		p.Update([]model.Delta{{New: all[len(all)-2]}, {New: all[len(all)-1]}})
		check(p, map[string]int{"evil": places / 2, "shop": 2})
		p.stop()
		p = start(t, k, all...)
		defer p.stop()
		check(p, map[string]int{"evil": places / 2, "shop": 2})
	})
}
