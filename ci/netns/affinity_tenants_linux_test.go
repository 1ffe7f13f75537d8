// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

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
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
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
