// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// state is what others could have in the kernel.
func (s *site) state() string {
	return s.run("sh", "-c", `set -e
ipvsadm -Sn | sort
ipset save | sed 's/ initval [^ ]*//; s/ bucketsize [^ ]*//' | sort
for t in mangle nat filter; do iptables-save -t $t; ip6tables-save -t $t; done | grep -v '^#' | sed 's/\[[0-9:]*\]//'
ip -o addr | sort; ip rule; ip -6 rule; ip route show table all | grep -v '^local.*kube' | sort`)
}

// What others have is the same before, beside and after us.
func TestForeignObjectsStay(t *testing.T) {
	s := newSite(t)
	// The tables exist from the first listing on.
	s.run("sh", "-c", `set -e
for t in mangle nat filter; do iptables -t $t -L -n; ip6tables -t $t -L -n; done >/dev/null
ipvsadm -A -t 198.51.100.7:80 -s wlc; ipvsadm -a -t 198.51.100.7:80 -r 10.244.1.3:8080 -m
ipvsadm -A -f 7 -s rr; ipvsadm -A -t 192.0.2.1:9999 -s rr
ipset create theirs hash:ip; ipset add theirs 10.0.0.1
ip link add dummy7 type dummy; ip addr add 203.0.113.77/32 dev dummy7
ip rule add fwmark 0x77 table 77 priority 77
iptables -t nat -A POSTROUTING -s 172.16.0.0/12 -j MASQUERADE
iptables -t nat -N KUBE-POSTROUTING-THEIRS
iptables -A INPUT -m set --match-set theirs src -j DROP`)
	before := s.state()
	s.open()
	s.set(web(first, second))
	if got := s.dial(); got != first && got != second {
		t.Errorf("reached %s", got)
	}
	for _, theirs := range []string{"198.51.100.7:80", "-f 7", "192.0.2.1:9999", "theirs 10.0.0.1", "203.0.113.77", "fwmark 0x77", "172.16.0.0/12"} {
		if !strings.Contains(s.state(), theirs) {
			t.Errorf("%s is gone beside us", theirs)
		}
	}
	if err := s.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := s.state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// kube-proxy's objects with our names are adopted, with nothing of them
// left that would do harm.
func TestTakesOverFromKubeProxy(t *testing.T) {
	s := newSite(t)
	s.run("sh", "-c", `set -e
ip link add kube-ipvs0 type dummy; ip addr add 10.96.0.10/32 dev kube-ipvs0
ipset create KUBE-CLUSTER-IP hash:ip,port maxelem 65536; ipset add KUBE-CLUSTER-IP 10.96.0.99,tcp:80
ipvsadm -A -t 10.96.0.10:80 -s wlc; ipvsadm -a -t 10.96.0.10:80 -r 10.244.1.9:8080 -m; ipvsadm -a -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 5
iptables -t filter -N KUBE-IPVS-FILTER; iptables -A KUBE-IPVS-FILTER -j DROP; iptables -A INPUT -j KUBE-IPVS-FILTER`)
	s.open()
	s.set(web(first))
	s.driver.drains.check()
	s.same(testHost(), []*model.Port{web(first)})
	for range 5 {
		if got := s.dial(); got != first {
			t.Errorf("reached %s", got)
		}
	}
}

// Another program's virtual server inside the excluded ranges is reported, and
// stays as it is with its destinations, whatever our Service of that address does;
// one of our own there is ours also after a restart.
func TestExcludedServersAreNeverTouched(t *testing.T) {
	s := newSite(t)
	const theirs = "198.51.100.7:80"
	s.run("sh", "-c", "ipvsadm -A -t "+theirs+" -s wlc; ipvsadm -a -t "+theirs+" -r 10.244.1.2:8080 -m -w 5")
	servers := func() (all string) {
		for l := range strings.Lines(s.run("ipvsadm", "-Sn")) {
			if strings.Contains(l, theirs) {
				all += l
			}
		}
		return all
	}
	before := servers()
	excluded := func(ips ...string) *model.Port {
		p := web(ips...)
		p.Frontends[1].At = netip.MustParseAddrPort(theirs)
		return p
	}
	s.open()
	was := (*model.Port)(nil)
	for _, p := range []*model.Port{excluded(first), excluded(first, second), excluded(second), nil} {
		s.Update([]model.Delta{{Old: was, New: p}})
		if _, err := s.Sync(t.Context()); p != nil && !errors.Is(err, unix.EEXIST) {
			t.Errorf("nothing is said of it: %v", err)
		}
		if after := servers(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		was = p
	}
	s.run("ipvsadm", "-D", "-t", theirs)
	s.set(excluded(first))
	s.close()
	s.open()
	if n := s.set(excluded(first)); n != 0 {
		t.Errorf("a restart wrote %d objects", n)
	}
	s.set()
	if left := servers(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// What another program deletes is noticed at the first change that needs it, and
// everything is repaired.
func TestDeletedServersAreNoticed(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	s.run("ipvsadm", "-C")
	s.Update([]model.Delta{{Old: s.ports[web(first).ID], New: web(first, second)}})
	if _, err := s.Sync(t.Context()); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	for syncs := 0; !s.Next().IsZero(); syncs++ { // one to read back; what failed may have to wait a little longer
		if syncs == 2 {
			t.Fatal("there is more to do after two syncs")
		}
		time.Sleep(time.Until(s.Next()))
		if _, err := s.Sync(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.same(testHost(), []*model.Port{web(first, second)})
}

// A set that was left where an earlier replacement was cut short is not taken for
// the new one.
func TestReplacingASetThatWasCutShort(t *testing.T) {
	s := newSite(t)
	s.run("sh", "-c", "ipset create KUBE-CLUSTER-IP hash:ip,port; ipset create TANDEM-NEW hash:ip,port; ipset add TANDEM-NEW 10.96.0.99,tcp:80")
	s.open()
	s.set(web(first))
	s.same(testHost(), []*model.Port{web(first)})
	if out := s.run("ipset", "list", "-n"); strings.Contains(out, "TANDEM-NEW") {
		t.Errorf("left: %s", out)
	}
}

// External changes of our objects are found, and repaired by what is
// missing alone.
func TestDriftIsRepaired(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	for what, cmd := range map[string]string{
		"a virtual server":       "ipvsadm -D -t 10.96.0.10:80",
		"everything of IPVS":     "ipvsadm -C",
		"a destination":          "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080",
		"a weight":               "ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 7",
		"a scheduler":            "ipvsadm -E -t 10.96.0.10:80 -s wlc",
		"a set's entries":        "ipset flush KUBE-CLUSTER-IP",
		"an entry's mark":        "ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80 skbmark 0x1/0x1 -exist",
		"an entry too many":      "ipset add KUBE-CLUSTER-IP 10.96.0.77,tcp:80",
		"an address":             "ip addr del 10.96.0.10/32 dev kube-ipvs0",
		"the device":             "ip link del kube-ipvs0",
		"a chain's rules":        "iptables -t mangle -F KUBE-SERVICES",
		"a rule":                 "iptables -t mangle -I KUBE-SERVICES 3 -j DROP",
		"a jump":                 "iptables -t mangle -F PREROUTING",
		"the rule for routing":   "ip rule del priority 99",
		"the table for routing":  "ip route flush table 254514",
		"masquerading, entirely": "iptables -t nat -F",
	} {
		s.run("sh", "-c", cmd)
		drift, err := s.Audit(t.Context())
		if err != nil || drift == 0 {
			t.Errorf("%s: drift %d, %v", what, drift, err)
		}
		if _, err := s.Sync(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.same(testHost(), []*model.Port{web(first)})
		if got := s.dial(); got != first {
			t.Errorf("%s: after the repair reached %s", what, got)
		}
	}
}

// Rules of other programs that packets meet before ours are named.
func TestRulesOfOthersAreNamed(t *testing.T) {
	s := newSite(t)
	s.open()
	s.set(web(first))
	before, err := s.driver.Others(t.Context())
	if err != nil || len(before) != 0 {
		t.Errorf("before there is any: %v, %v", before, err)
	}
	s.run("iptables", "-I", "FORWARD", "-p", "tcp", "--dport", "80", "-j", "DROP")
	after, err := s.driver.Others(t.Context())
	if err != nil || len(after) != 1 || !strings.Contains(after[0], "FORWARD") {
		t.Errorf("%v, %v", after, err)
	}
}
