// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestPacketsAreCounted reads the metrics that kube-proxy has in iptables mode
// alone: they count packets, and never go back.
func TestPacketsAreCounted(t *testing.T) {
	eachVariant(t, func(t *testing.T) {
		s := newSite(t)
		s.flags = []string{"--proxy-mode", "iptables", "--iptables-localhost-nodeports"}
		s.write("", "10.244.1.2", "10.244.1.3")
		s.start()
		if n := s.metric(`kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}`); n < 10 {
			t.Errorf("%v rules in the nat table", n)
		}
		s.counts(0, 0)
		for _, to := range []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:30080"), nodePort, clusterIP, netip.MustParseAddrPort("127.0.0.1:30080")} {
			a, err := s.net.Dial(lab.Call{From: lab.Node, Proto: model.TCP, To: to, Timeout: time.Second})
			if err != nil || a.Outcome != lab.Answered {
				t.Errorf("%s: %s (%v)", to, a.Outcome, err)
			}
		}
		for range 3 {
			s.unasked()
		}
		s.counts(3, 2)
		right := s.rules()
		s.must("iptables", "-t", "nat", "-F", "KUBE-POSTROUTING")
		s.must("iptables", "-F", "KUBE-FORWARD")
		s.repaired("counters are gone", right)
		s.counts(3, 2)
		s.unasked()
		s.counts(4, 2)
	})
}

// counts waits for the two counters: they are not read at each scrape.
func (s *site) counts(invalid, localhost float64) {
	s.t.Helper()
	s.eventually(time.Minute, "packets counted", func() error {
		i := s.metric("kubeproxy_iptables_ct_state_invalid_dropped_packets_total")
		l := s.metric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total")
		if i != invalid || l != localhost {
			return fmt.Errorf("%v invalid and %v to localhost, not %v and %v", i, l, invalid, localhost)
		}
		return nil
	})
}

// unasked sends an echo reply without a request, which connection
// tracking calls invalid, past the node.
func (s *site) unasked() {
	s.t.Helper()
	err := s.net.Do("10.244.1.10", func() error {
		conn, err := net.ListenPacket("ip4:icmp", "10.244.1.10")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.WriteTo([]byte{0, 0, 0xff, 0xff, 0, 0, 0, 0}, &net.IPAddr{IP: net.IPv4(192, 0, 2, 100)})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// metric returns the value of a series.
func (s *site) metric(name string) float64 {
	s.t.Helper()
	n, there := s.metrics()[name]
	if !there {
		s.t.Fatalf("no metric %s", name)
	}
	return n
}

// metrics scrapes the program: its series by name and labels, with their values.
func (s *site) metrics() map[string]float64 {
	s.t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = s.net.Do(lab.Node, func() (err error) {
				conn, err = net.DialTimeout("tcp", "127.0.0.1:10249", time.Second)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("/metrics: %s: %s", resp.Status, text)
	}
	all := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name] = n
		}
	}
	if err := lines.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}
