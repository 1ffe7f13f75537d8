// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// tenantSite is a site with a victim's Service, of three endpoints, and a pod of another tenant:
//
//	node-1: victim's endpoints and clients, attacker's pod     node-2: an endpoint, a kubelet
//	outside: a client of both, and all forged ones
type tenantSite struct {
	*site
	endpoints []netip.Addr // the victim's
	clients   []netip.Addr // of one pod of the victim's, each an address
}

var (
	attackerPod    = netip.MustParseAddr("10.244.1.66")
	otherNode      = netip.MustParseAddr("192.0.2.2")
	kubelet        = netip.AddrPortFrom(otherNode, 10250)
	balancerIP     = netip.MustParseAddrPort("203.0.113.10:80")
	externalIP     = netip.MustParseAddrPort("203.0.113.20:80")
	outsideClient  = netip.MustParseAddr("192.0.2.100")
	remoteEndpoint = netip.MustParseAddr("172.20.2.5") // in no range of pods that the program knows
)

// victimClients is how many of a Service's clients have affinity.
const victimClients = 40

func newTenantSite(t *testing.T, mode string) *tenantSite {
	t.Helper()
	v := &tenantSite{endpoints: []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3"), remoteEndpoint}}
	plan := lab.Plan{
		Node: []netip.Addr{nodeIP}, Outside: []netip.Addr{outsideClient}, Others: []netip.Addr{otherNode, remoteEndpoint},
	}
	for i := range victimClients {
		v.clients = append(v.clients, netip.AddrFrom4([4]byte{10, 244, 7, byte(1 + i)}))
	}
	for i, addresses := range [][]netip.Addr{v.endpoints[:1], v.endpoints[1:2], {attackerPod}, append([]netip.Addr{netip.MustParseAddr("10.244.1.10")}, v.clients...)} {
		plan.Pods = append(plan.Pods, lab.Pod{Place: lab.Place(addresses[0].String()), Interface: fmt.Sprint("pod", i), Addrs: addresses})
	}
	v.site = newSiteOn(t, plan)
	v.flags = []string{"--proxy-mode", mode, "--endpoint-failover", "off"}
	v.works(mode)
	for _, at := range []netip.AddrPort{
		netip.AddrPortFrom(v.endpoints[0], 8080), netip.AddrPortFrom(v.endpoints[1], 8080), netip.AddrPortFrom(remoteEndpoint, 8080),
		netip.AddrPortFrom(attackerPod, 8080), kubelet,
	} {
		place, _ := v.net.PlaceOf(at.Addr())
		if _, err := v.net.Serve(place, at, model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// victim is the manifest of the victim's Service and of the nodes, with more in the Service's spec.
func (v *tenantSite) victim(more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: web, namespace: victim, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  type: LoadBalancer
  clusterIP: %s
  externalIPs: [%s]
  ports: [{name: http, protocol: TCP, port: 80, nodePort: %d}]
%sstatus: {loadBalancer: {ingress: [{ip: %s}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: victim, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
`, clusterIP.Addr(), externalIP.Addr(), nodePort.Port(), more, balancerIP.Addr())
	for i, a := range v.endpoints {
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node-%d}\n", a, 1+i/2)
	}
	for i, ip := range []netip.Addr{nodeIP, otherNode} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", 1+i, ip)
	}
	return b.String()
}

// attack replaces what the hostile namespace has; empty removes it.
func (v *tenantSite) attack(text string) {
	v.t.Helper()
	name := filepath.Join(v.dir, "evil.yaml")
	if text == "" {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			v.t.Error(err)
		}
		return
	}
	tmp := filepath.Join(v.dir, ".evil")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		v.t.Error(err)
		return
	}
	if err := os.Rename(tmp, name); err != nil {
		v.t.Error(err)
	}
}

// claim is a Service of the hostile namespace with external IPs, on some ports, in front of its pod.
func claim(n, year int, externalIPs []netip.Addr, ports ...uint16) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: claim-%d, namespace: evil, creationTimestamp: \"%d-01-01T00:00:00Z\"}\nspec:\n  clusterIP: 10.96.66.%d\n  externalIPs: [", n, year, n)
	for i, a := range externalIPs {
		fmt.Fprintf(&b, "%s%s", strings.Repeat(", ", min(i, 1)), a)
	}
	b.WriteString("]\n  ports:\n")
	for _, p := range ports {
		fmt.Fprintf(&b, "  - {name: p%d, protocol: TCP, port: %d, targetPort: 8080}\n", p, p)
	}
	fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: claim-%d-1, namespace: evil, labels: {kubernetes.io/service-name: claim-%d}}\naddressType: IPv4\nports:\n", n, n)
	for _, p := range ports {
		fmt.Fprintf(&b, "- {name: p%d, protocol: TCP, port: 8080}\n", p)
	}
	fmt.Fprintf(&b, "endpoints: [{addresses: [%s], nodeName: node-1}]\n", attackerPod)
	return b.String()
}

// TestHostileClaims has another namespace write the victim's addresses into externalIPs of Services that are
// older than the victim's; they come, change and go, and the program is killed and started again
// meanwhile. All of the victim's connections reach its own endpoints, and nothing of the attacker's answers at
// the victim's addresses, on any port. External IPs of both are of the same rank: there the older
// Service has a port, whoever has others, so that the attacker's is a newer one.
func TestHostileClaims(t *testing.T) {
	at := netip.AddrPortFrom
	mine := at(netip.MustParseAddr("203.0.113.66"), 80)
	for _, mode := range failoverModes() {
		t.Run(mode, func(t *testing.T) {
			v := newTenantSite(t, mode)
			v.put(v.victim(""))
			taken := []netip.Addr{balancerIP.Addr(), clusterIP.Addr(), nodeIP, otherNode, v.endpoints[0], v.endpoints[1], remoteEndpoint}
			ports := []uint16{80, 8080, 8443, 10250, nodePort.Port()}
			newer := claim(2, 2026+1, []netip.Addr{externalIP.Addr(), mine.Addr()}, 80)
			all := claim(1, 2020, taken, ports...) + newer
			states := []string{all, "", newer + claim(1, 2020, taken[:3], 80, 8443), all, newer + claim(1, 2019, taken, 8443), claim(1, 2020, taken[3:], ports...) + claim(3, 2018, taken, 8080)}
			v.attack(all)
			v.start()
			v.eventually(20*time.Second, "what is the attacker's own answers", func() error { return v.reach(mine) })

			own := []netip.AddrPort{at(v.endpoints[0], 8080), at(v.endpoints[1], 8080), at(remoteEndpoint, 8080)}
			var calls []lab.Call
			want := map[netip.AddrPort][]netip.Addr{} // who may answer; nobody else may
			for _, to := range []netip.AddrPort{clusterIP, balancerIP, externalIP, nodePort} {
				want[to] = v.endpoints
				for _, from := range []lab.Place{"10.244.1.10", lab.Node, lab.Outside} {
					if from != lab.Outside || to != clusterIP {
						calls = append(calls, lab.Call{From: from, Proto: model.TCP, To: to, Timeout: 10 * time.Second})
					}
				}
			}
			for _, to := range []netip.AddrPort{own[0], own[2], kubelet} {
				want[to] = []netip.Addr{to.Addr()}
				for _, from := range []lab.Place{"10.244.1.10", lab.Node, lab.Outside} {
					calls = append(calls, lab.Call{From: from, Proto: model.TCP, To: to, Timeout: 10 * time.Second})
				}
			}
			asked := len(calls) // and those that nobody may answer
			for _, a := range taken {
				if a == nodeIP { // ports of it on which no process listens are nobody's: who asks first has them
					continue
				}
				for _, p := range ports {
					if to := at(a, p); want[to] == nil && to != own[1] {
						calls = append(calls, lab.Call{From: "10.244.1.10", Proto: model.TCP, To: to, Timeout: 300 * time.Millisecond})
						calls = append(calls, lab.Call{From: lab.Outside, Proto: model.TCP, To: to, Timeout: 300 * time.Millisecond})
					}
				}
			}
			held, first := v.hold(calls[:asked])
			defer hangUp(held)

			done := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					case <-time.After(50 * time.Millisecond):
						v.attack(states[n%len(states)])
					}
				}
			})
			if mode != "userspace" { // the kernel has the connections
				writer.Go(func() {
					for range 2 {
						time.Sleep(time.Second)
						v.kill()
						v.start()
					}
				})
			}
			n, lost, wrong := 0, 0, 0
			for _, a := range v.connect(150, 4*time.Second, func(n int) lab.Call { return calls[n%len(calls)] }) {
				call := calls[n%len(calls)]
				mayAnswer := want[call.To]
				switch n++; {
				case a.failed != "" && mayAnswer != nil:
					lost++
					t.Errorf("%s to %s: %s", call.From, call.To, a.failed)
				case a.failed == "" && !slices.Contains(mayAnswer, a.server):
					wrong++
					t.Errorf("%s to %s reached %s", call.From, call.To, a.server)
				}
			}
			close(done)
			writer.Wait()
			broken := 0
			for i, c := range held {
				if a, err := lab.Ask(c, 10*time.Second); err != nil || a.Server != first[i] {
					broken++
					t.Errorf("a connection to %s broke: %s by %s (%v), was with %s", c.RemoteAddr(), a.Outcome, a.Server, err, first[i])
				}
			}
			t.Logf("%d connections of %d kinds: %d of the victim's lost, %d reached somebody else; %d of %d held ones broke", n, len(calls), lost, wrong, broken, len(held))
		})
	}
}

// hold makes connections and has each answered once, by whom it returns.
func (v *tenantSite) hold(calls []lab.Call) (conns []net.Conn, by []netip.AddrPort) {
	v.t.Helper()
	for _, call := range calls {
		conn, err := v.net.Connect(call)
		if err != nil {
			v.t.Fatalf("%s to %s: %v", call.From, call.To, err)
		}
		a, err := lab.Ask(conn, 10*time.Second)
		if err != nil || a.Outcome != lab.Answered {
			v.t.Fatalf("%s to %s: %s (%v)", call.From, call.To, a.Outcome, err)
		}
		conns, by = append(conns, conn), append(by, a.Server)
	}
	return conns, by
}

const affine = "  sessionAffinity: ClientIP\n"

var attackedIP = netip.MustParseAddrPort("203.0.113.66:53")

// affineTarget is a Service of the hostile namespace with affinity that forged clients from outside reach without SNAT.
var affineTarget = fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: target, namespace: evil}
spec:
  type: LoadBalancer
  clusterIP: 10.96.66.1
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  ports: [{name: dns, protocol: UDP, port: 53}]
status: {loadBalancer: {ingress: [{ip: %s}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: target-1, namespace: evil, labels: {kubernetes.io/service-name: target}}
addressType: IPv4
ports: [{name: dns, protocol: UDP, port: 8080}]
endpoints: [{addresses: [%s], nodeName: node-1}]
`, attackedIP.Addr(), attackerPod)

// forge sends a datagram from each of so many forged clients to the attacker's Service, the first of them a
// given one.
func (v *tenantSite) forge(first, n int) error {
	return v.net.Do(lab.Outside, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := first; i < first+n; i++ {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64 + byte(i>>16), byte(i >> 8), byte(i)}), 1024)
			if err := unix.Sendto(fd, datagram(from, attackedIP), 0, &unix.SockaddrInet4{Addr: attackedIP.Addr().As4()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// datagram is an IPv4 packet with a UDP datagram of no content and without a checksum.
func datagram(from, to netip.AddrPort) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[8], p[9] = 0x45, byte(len(p)), 64, unix.IPPROTO_UDP
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[20:], from.Port())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	p[25] = 8
	return p
}

// chosen is which endpoint each of the victim's clients reaches.
func (v *tenantSite) chosen() (all []netip.Addr) {
	v.t.Helper()
	for _, c := range v.clients {
		a, err := v.net.Dial(lab.Call{From: "10.244.1.10", Src: c, Proto: model.TCP, To: clusterIP, Timeout: 20 * time.Second})
		if err != nil || a.Outcome != lab.Answered {
			v.t.Errorf("%s: %s (%v)", c, a.Outcome, err)
		}
		all = append(all, a.Server.Addr())
	}
	return all
}

// moved counts the clients that do not reach the endpoint that they had.
func (v *tenantSite) moved(what string, had []netip.Addr) (n int) {
	v.t.Helper()
	for i, a := range v.chosen() {
		if a != had[i] {
			n++
		}
	}
	v.t.Logf("%s: %d of %d clients of the victim lost their endpoint", what, n, len(had))
	return n
}

// crowded waits until a problem says that a Service of the attacker has no room for clients, and of none else.
func (v *tenantSite) crowded() {
	v.t.Helper()
	v.eventually(30*time.Second, "a problem of the attacker's Service", func() error {
		doc, err := v.status()
		if err != nil {
			return err
		}
		all := doc.Problems
		for _, s := range doc.Services {
			all = append(all, s.Problems...)
		}
		found := 0
		for _, p := range all {
			switch {
			case !strings.Contains(p.Detail, "session affinity"):
			case p.Object != "Service evil/target":
				v.t.Fatalf("%+v", p)
			default:
				found++
			}
		}
		if found == 0 {
			return fmt.Errorf("problems: %v", all)
		}
		return nil
	})
}

// forged is how many clients an attack has. In nftables they fill the attacker's share and the common
// spare room: 4,096 and 65,536. Elsewhere nothing more happens with more of them.
func forged(mode string) int {
	if mode == "nftables" {
		return 80_000
	}
	return 20_000
}

// flood has all forged clients come, with pauses in which the victim's clients connect, which must stay where they are.
func (v *tenantSite) flood(mode string, had []netip.Addr) {
	v.t.Helper()
	const part = 4
	n := forged(mode) / part
	for i := range part {
		if err := v.forge(i*n, n); err != nil {
			v.t.Fatal(err)
		}
		if lost := v.moved(fmt.Sprint(mode, ", after ", (i+1)*n, " forged clients"), had); lost > 0 {
			v.t.Errorf("%d of %d clients lost their endpoint", lost, len(had))
		}
	}
}

// affinityModes are those modes with what bounds the clients that a Service makes them remember.
//
//	nftables   a share each, as many new ones a day, and a common spare room: see linux/nftables
//	iptables   xt_recent keeps the last 100 clients of each endpoint, in a list of its own: no Service has another's room,
//	           and nothing is reported
//	ipvs       a persistence template a client, of which the kernel has no limit, by Service or at all: others'
//	           stay, and the node's memory pays; nothing is reported
//	userspace  131,072 for all relays, where the largest namespace gives way; what a client over UDP costs first is
//	           one of the sessions, of which there are far fewer, so that a flood of datagrams does not get there
//
// TestHostileAffinity floods a Service of another namespace with forged clients. The victim's stay with their endpoints
// meanwhile, afterwards, and over a restart of the program with the map crowded; new ones stay with theirs.
func TestHostileAffinity(t *testing.T) {
	for _, mode := range failoverModes() {
		t.Run(mode, func(t *testing.T) {
			v := newTenantSite(t, mode)
			v.put(v.victim(affine))
			v.attack(affineTarget)
			v.start()
			known := v.clients
			v.clients = known[:victimClients/2]
			had := v.chosen()
			v.flood(mode, had)
			if mode == "nftables" {
				v.crowded()
			}
			v.clients = known[victimClients/2:]
			if lost := v.moved("new clients in a crowd", v.chosen()); lost > 0 {
				t.Errorf("%d of %d new clients are not remembered", lost, len(v.clients))
			}
			v.clients = known[:victimClients/2]
			v.kill()
			v.start()
			if lost := v.moved("after a restart", had); lost > 0 && mode != "userspace" { // there they are the process's own
				t.Errorf("%d of %d clients lost their endpoint", lost, len(had))
			}
		})
	}
}

// TestUpgradeOfACrowd puts this program in the place of an earlier one, whose map has no shares and which knows
// ports by numbers without a salt, while forged clients come. The victim's clients choose once more at the upgrade
// (no release has had those numbers), and then stay with their endpoints.
func TestUpgradeOfACrowd(t *testing.T) {
	old := earlier(t, releases[0].commit)
	const mode = "nftables"
	v := newTenantSite(t, mode)
	v.put(v.victim(affine))
	v.attack(affineTarget)
	now := v.bin
	v.bin, v.flags = old, v.flags[:2]
	v.start()
	had := v.chosen()
	if err := v.forge(1<<20, 20_000); err != nil { // others than those that come later: these are remembered
		t.Fatal(err)
	}
	if lost := v.moved("beside the old program", had); lost > 0 {
		t.Errorf("%d of %d clients lost their endpoint before the upgrade", lost, len(had))
	}
	v.kill()
	v.bin = now
	v.start()
	had = v.chosen()
	v.kill()
	v.start()
	if lost := v.moved("after a restart", had); lost > 0 {
		t.Errorf("%d of %d clients lost their endpoint", lost, len(had))
	}
	v.flood(mode, had)
	v.crowded()
}

// sticky is a Service with session affinity and its endpoints, as YAML.
func sticky(namespace, ip string, port int, endpoints ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: %[1]s}
spec:
  clusterIP: %[2]s
  sessionAffinity: ClientIP
  ports: [{name: http, protocol: TCP, port: %[3]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, namespace: %[1]s, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
`, namespace, ip, port)
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node-1}\n", e)
	}
	return b.String()
}

// forge sends SYNs out of a pod with another one's address.
func (s *site) forge(at string, from netip.Addr, to netip.AddrPort, n int) {
	s.t.Helper()
	err := s.net.Do(lab.Place(at), func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range n {
			port := uint16(20000 + (int(time.Now().UnixNano()/1000)+i)%20000)
			if err := unix.Sendto(fd, synPacket(netip.AddrPortFrom(from, port), to), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestAnotherPortTakesNoAffinity has a hostile namespace choose the cluster IP and the port of a Service such that
// they come together with a victim's, and send to it with the address of the victim's client.
func TestAnotherPortTakesNoAffinity(t *testing.T) {
	client, victim := netip.MustParseAddr("10.244.1.10"), netip.MustParseAddrPort("10.96.0.10:80")
	trap := netip.MustParseAddrPort("10.97.0.10:81") // 96 ^ 80 is 97 ^ 81
	for _, mode := range failoverModes() {
		for _, c := range []struct {
			name   string
			own    []string // endpoints of the hostile Service
			attack bool
		}{
			{"nobody", []string{"10.244.1.4"}, false},
			{"with an endpoint of its own", []string{"10.244.1.4"}, true},
			{"with one of the victim's", []string{"10.244.1.3"}, true},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				s := newSite(t)
				s.works(mode)
				s.flags = []string{"--proxy-mode", mode}
				s.must("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0")
				s.put(sticky("default", victim.Addr().String(), 80, "10.244.1.2", "10.244.1.3") + sticky("evil", trap.Addr().String(), 81, c.own...) +
					fmt.Sprintf("---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", nodeIP))
				s.start()
				moved, at, first := 0, map[netip.Addr]int{}, netip.Addr{}
				for n := range 40 {
					a, err := s.net.Dial(lab.Call{From: lab.Place(client.String()), Proto: model.TCP, To: victim, Timeout: 5 * time.Second})
					if err != nil || a.Outcome != lab.Answered {
						t.Fatalf("connection %d: %v %v", n, a, err)
					}
					at[a.Server.Addr()]++
					if first.IsValid() && a.Server.Addr() != first {
						moved++
					}
					first = a.Server.Addr()
					if c.attack {
						s.forge("10.244.1.4", client, trap, 1)
						time.Sleep(5 * time.Millisecond)
					}
				}
				t.Logf("of 40 connections of one client %d have moved: %v", moved, at)
				if moved > 0 {
					t.Errorf("session affinity lost %d times", moved)
				}
			})
		}
	}
}

// TestManifestsMeanWhatIsInstalled asks for the path of a packet by manifests, beside a proxy of the same node: the
// numbers of affinity are this node's, too.
func TestManifestsMeanWhatIsInstalled(t *testing.T) {
	s := newSite(t)
	s.works("nftables")
	s.flags = []string{"--proxy-mode", "nftables"}
	s.put(sticky("default", "10.96.0.10", 80, "10.244.1.2", "10.244.1.3"))
	s.start()
	out, err := s.run(s.bin, "trace", "--manifests", s.dir, "--proxy-mode", "nftables", "--node", "node-1", "--cluster-cidr", "10.244.0.0/16", "10.244.1.10", "10.96.0.10:80")
	if err != nil || strings.Contains(out, "affinity") {
		t.Errorf("%v\n%s", err, out)
	}
}
