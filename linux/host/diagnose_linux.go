// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Diagnose checks what Services need of a Linux node, whatever the mode. It
// changes nothing.
func Diagnose() []diagnosis.Check {
	checks := []diagnosis.Check{forwarding("net/ipv4/ip_forward", "forwarding-ipv4", diagnosis.Fail)}
	if _, err := Sysctl("net/ipv6/conf/all/forwarding"); err == nil {
		checks = append(checks, forwarding("net/ipv6/conf/all/forwarding", "forwarding-ipv6", diagnosis.Note))
	}
	checks = append(checks, bridgeNetfilter()...)
	checks = append(checks, conntrackUsage())
	return append(checks, otherProxies()...)
}

func forwarding(sysctl, id string, missing diagnosis.Level) diagnosis.Check {
	name := strings.ReplaceAll(sysctl, "/", ".")
	v, err := Sysctl(sysctl)
	switch {
	case err != nil:
		return diagnosis.Check{ID: id, Level: diagnosis.Warn, Found: err.Error()}
	case v == "1":
		return diagnosis.Check{ID: id, Level: diagnosis.OK, Found: name + " is 1"}
	}
	return diagnosis.Check{
		ID: id, Level: missing, Fix: "sysctl -w " + name + "=1",
		Found: name + " is " + v + ": packets for endpoints that are not of this host are not passed on",
	}
}

// bridges: where br_netfilter is not asked to, packets between pods of one
// bridge never meet the rules, and answers bypass them.
func bridgeNetfilter() []diagnosis.Check {
	v, err := Sysctl("net/bridge/bridge-nf-call-iptables")
	if err != nil {
		return []diagnosis.Check{{
			ID: "bridge-netfilter", Level: diagnosis.Note, Found: "br_netfilter is not loaded; it is needed where pods of this node share a bridge",
			Fix: "modprobe br_netfilter",
		}}
	}
	if v == "1" {
		return []diagnosis.Check{{ID: "bridge-netfilter", Level: diagnosis.OK, Found: "bridged packets meet the rules"}}
	}
	return []diagnosis.Check{{
		ID: "bridge-netfilter", Level: diagnosis.Warn, Found: "bridged packets bypass the rules: a pod that reaches itself or a neighbour through a Service gets no answer",
		Fix: "sysctl -w net.bridge.bridge-nf-call-iptables=1",
	}}
}

// nearlyFull is from which part of the table in use on new connections are in danger.
const nearlyFull = 0.8

func conntrackUsage() diagnosis.Check {
	c := diagnosis.Check{ID: "conntrack", Level: diagnosis.OK}
	count, err1 := sysctlInt("net/netfilter/nf_conntrack_count")
	limit, err2 := sysctlInt("net/netfilter/nf_conntrack_max")
	switch {
	case err1 != nil || err2 != nil || limit == 0:
		c.Level, c.Found, c.Fix = diagnosis.Note, "connection tracking is not in use yet", ""
	case float64(count) > nearlyFull*float64(limit):
		c.Level, c.Fix = diagnosis.Fail, fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*limit)
		c.Found = fmt.Sprintf("%d of %d connections are tracked: when it is full, new ones fail", count, limit)
	default:
		c.Found = fmt.Sprintf("%d of %d connections are tracked", count, limit)
	}
	return c
}

func sysctlInt(sysctl string) (int, error) {
	v, err := Sysctl(sysctl)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(v)
}

// otherProxies finds kube-proxy running in this network namespace.
func otherProxies() []diagnosis.Check {
	c := diagnosis.Check{ID: "kube-proxy", Level: diagnosis.OK, Found: "no kube-proxy runs here"}
	pids := KubeProxies()
	if len(pids) > 0 {
		c.Level, c.Fix = diagnosis.Warn, "stop it, and run tandem with --takeover so that its rules are replaced"
		c.Found = fmt.Sprintf("kube-proxy runs here as process %s: two proxies answer for the same addresses", strings.Join(pids, ", "))
	}
	return []diagnosis.Check{c}
}

// KubeProxies returns the process ids of kube-proxies in the network namespace
// of the calling thread, as far as this process may look.
func KubeProxies() (pids []string) {
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return nil
	}
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(comm)) != "kube-proxy" {
			continue
		}
		dir := filepath.Dir(name)
		if there, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && there == here {
			pids = append(pids, filepath.Base(dir))
		}
	}
	return pids
}
