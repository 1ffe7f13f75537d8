// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// said parses "name=word" into assignments; fields get lines from 1.
func said(lines ...string) (file, flags []config.Assignment) {
	for i, l := range lines {
		name, words, _ := strings.Cut(l, "=")
		a := config.Assignment{Name: name, Words: strings.Split(words, "|")}
		if strings.HasPrefix(name, "--") {
			flags = append(flags, a)
			continue
		}
		a.Where = "f:" + string(rune('1'+i))
		file = append(file, a)
	}
	return file, flags
}

func build(lines ...string) (*config.Config, config.Report) {
	file, flags := said(lines...)
	return config.Build(config.Input{HasFile: file != nil, File: file, Flags: flags})
}

func text(fs []config.Finding) string {
	var all []string
	for _, f := range fs {
		all = append(all, f.String())
	}
	return strings.Join(all, "\n")
}

// Which section counts depends on the mode, as in kube-proxy.
func TestSections(t *testing.T) {
	lines := []string{
		"iptables.masqueradeBit=1", "iptables.masqueradeAll=true", "iptables.syncPeriod=11s", "iptables.minSyncPeriod=1s",
		"nftables.masqueradeBit=2", "nftables.syncPeriod=12s", "nftables.minSyncPeriod=2s",
		"ipvs.syncPeriod=13s", "ipvs.minSyncPeriod=3s",
	}
	for mode, want := range map[string]struct {
		bit       int
		all       bool
		sync, min time.Duration
	}{
		"":            {1, true, 11 * time.Second, time.Second},
		"auto":        {1, true, 11 * time.Second, time.Second},
		"iptables":    {1, true, 11 * time.Second, time.Second},
		"kernelspace": {1, true, 11 * time.Second, time.Second},
		"nftables":    {2, false, 12 * time.Second, 2 * time.Second},
		"ipvs":        {1, true, 13 * time.Second, 3 * time.Second},
	} {
		c, r := build(append(lines, "mode="+mode)...)
		if r.Err() != nil || c.MasqueradeBit != want.bit || c.MasqueradeAll != want.all || c.SyncPeriod != want.sync || c.MinSyncPeriod != want.min {
			t.Errorf("%q: %v, %d %t %s %s", mode, r.Err(), c.MasqueradeBit, c.MasqueradeAll, c.SyncPeriod, c.MinSyncPeriod)
		}
	}
	_, r := build(append(lines, "mode=nftables")...)
	if got := text(r.Notes); !strings.Contains(got, "f:1: iptables.masqueradeBit: has no effect in the mode nftables, nftables.masqueradeBit has") {
		t.Errorf("notes:\n%s", got)
	}
}

// Flags that kube-proxy has for iptables only count for nftables, too.
func TestFlagsOfSections(t *testing.T) {
	c, r := build("--proxy-mode=nftables", "--iptables-masquerade-bit=3", "--masquerade-all=true", "--iptables-sync-period=9s", "--iptables-min-sync-period=4s")
	if r.Err() != nil || len(r.Notes) > 0 || c.MasqueradeBit != 3 || !c.MasqueradeAll || c.SyncPeriod != 9*time.Second || c.MinSyncPeriod != 4*time.Second {
		t.Errorf("%+v %+v", r, c)
	}
	for name, noted := range map[string]bool{"lc": false, "mh": false, "least-connections": true} {
		if _, r = build("--proxy-mode=ipvs", "--ipvs-scheduler="+name); r.Err() != nil || strings.Contains(text(r.Notes), "Linux has no IPVS scheduler") != noted {
			t.Errorf("scheduler %s: %+v", name, r)
		}
	}
	_, r = build("--ipvs-scheduler=lc", "--ipvs-min-sync-period=0s")
	if got := text(r.Notes); got != "--ipvs-scheduler: has no effect in the mode auto" {
		t.Errorf("notes:\n%s", got)
	}
}

// A change is programmed at once unless the user sets a minimum time.
func TestMinSyncPeriodIsTheUsers(t *testing.T) {
	for _, mode := range []string{"auto", "iptables", "nftables", "ipvs"} {
		if c, r := build("--proxy-mode=" + mode); r.Err() != nil || c.MinSyncPeriod != 0 {
			t.Errorf("%s: %s, %v", mode, c.MinSyncPeriod, r.Err())
		}
	}
}

func TestFlagsBesideAFile(t *testing.T) {
	c, r := build("mode=ipvs", "hostnameOverride=from-file", "logging.vmodule=a=1", "logging.verbosity=2",
		"--hostname-override=from-flag", "--v=4", "--vmodule=b=2", "--cluster-cidr=10.0.0.0/8", "--proxy-mode=iptables", "--manifests=dir", "--audit-period=1m", "--windows-service=true")
	if r.Err() != nil || c.Mode != "ipvs" || c.NodeName != "from-flag" || c.Logging.Verbosity != 4 ||
		c.Manifests != "dir" || c.AuditPeriod != time.Minute || len(c.ClusterCIDRs) > 0 || !c.Windows.Service {
		t.Errorf("%v %+v", r.Err(), c)
	}
	if !slices.Equal(c.Logging.Modules, []string{"b=2", "a=1"}) {
		t.Errorf("vmodule: %v, the flag's go first", c.Logging.Modules)
	}
	want := "--cluster-cidr: is ignored, since there is a --config, as in kube-proxy: set clusterCIDR in the file\n" +
		"--proxy-mode: is ignored, since there is a --config, as in kube-proxy: set mode in the file"
	if got := text(r.Notes); got != want {
		t.Errorf("notes:\n%s", got)
	}
}

// Who names an API server and a folder on the command line wants both, and one would be overlooked; a file may have a
// kubeconfig that is for other nodes.
func TestTwoSourcesOfServices(t *testing.T) {
	for _, flag := range []string{"--master", "--kubeconfig"} {
		if c, r := build(flag + "=http://x"); r.Err() != nil || c.API.Server == "" && c.API.Kubeconfig == "" {
			t.Errorf("%s alone: %v", flag, r.Err())
		}
		if _, r := build(flag+"=http://x", "--manifests=dir"); r.Err() == nil || text(r.Problems) != flag+": excludes --manifests: Services come from one of them" || len(r.Notes) > 0 {
			t.Errorf("%s beside --manifests: problems %s, notes %s", flag, text(r.Problems), text(r.Notes))
		}
	}
	if c, r := build("mode=ipvs", "--master=http://x"); r.Err() != nil || c.API.Server != "http://x" {
		t.Errorf("--master beside a file: %v", r.Err())
	}
	if _, r := build("clientConnection.kubeconfig=k", "--manifests=dir"); r.Err() != nil || text(r.Notes) != "f:1: clientConnection.kubeconfig: has no effect: Services come from --manifests" {
		t.Errorf("a kubeconfig in the file: %v, notes %s", r.Err(), text(r.Notes))
	}
}

// Each mistake is reported with its place, all of them in one run.
func TestConflicts(t *testing.T) {
	file, _ := said("mode=warp", "iptables.masqueradeBit=32", "iptables.syncPeriod=5s", "iptables.minSyncPeriod=6s", "clusterCIDR=10.0.0.0/8,11.0.0.0/8",
		"nodePortAddresses=primary|10.0.0.0/8|localhost|all", "conntrack.maxPerCore=-1", "oomScoreAdj=2000", "healthzBindAddress=:99999")
	_, flags := said("--hostname-override=../../x", "--nonsense=1")
	_, r := config.Build(config.Input{HasFile: true, File: file, Flags: flags, Mode: func(m config.Mode) error { return errors.New(string(m) + " is no mode") }})
	got := text(r.Problems)
	for _, want := range []string{
		"f:1: mode: warp is no mode", "f:2: iptables.masqueradeBit: 32 is outside 0 to 31",
		"f:4: iptables.minSyncPeriod: 6s is longer than the sync period, 5s",
		"f:5: clusterCIDR: can be one range, or one of IPv4 and one of IPv6",
		"f:7: conntrack.maxPerCore: -1 is less than 0", "f:8: oomScoreAdj: 2000 is outside -1000 to 1000",
		`f:9: healthzBindAddress: ":99999" has no valid port`,
		`--hostname-override: "../../x" cannot be the name of a Node`, "--nonsense: there is no such setting",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if n := len(r.Problems); n != 9 {
		t.Errorf("%d problems, want 9:\n%s", n, got)
	}
}

func TestBadValues(t *testing.T) {
	for line, want := range map[string]string{
		"--hostname-override=$(NODE_NAME)":                "was not expanded",
		"--hostname-override=" + strings.Repeat("a", 300): "longer than",
		"--iptables-sync-period=0s":                       "must be greater than 0",
		"--iptables-sync-period=30":                       "has no unit",
		"--config-sync-period=-1s":                        "must be greater than 0",
		"--conntrack-min=99999999999":                     "not a whole number of 32 bits",
		"--conntrack-udp-timeout=-1s":                     "negative",
		"--kube-api-qps=NaN":                              "not a number",
		"--kube-api-burst=-1":                             "less than 0",
		"--bind-address=here":                             "not an IP address",
		"--source-vip=1.2.3":                              "not an IP address",
		"--metrics-bind-address=localhost:1":              "no valid IP address",
		"--healthz-bind-address=[::1]":                    "not IP:PORT",
		"--healthz-port=99999":                            "outside 0 to 65535",
		"--feature-gates=A":                               "not of the form",
		"--vmodule=a=b":                                   "not of the form pattern=N",
		"--logging-format=xml":                            "not one of text, json",
		"--detect-local-mode=Guess":                       "not one of ClusterCIDR",
		"--pod-bridge-interface=br\" -j ACCEPT":           "a character that cannot be used",
		"--pod-interface-name-prefix=veth/":               "a character that cannot be used",
		"--pod-bridge-interface=a-name-that-is-too-long":  "longer than an interface name",
		"--proxy-mode-strict=maybe":                       "not true or false",
		"--cluster-cidr=10.0.0.0/8,10.0.0.0/33":           "is not a CIDR",
		"--cluster-cidr=::ffff:10.0.0.0/104":              "is not a CIDR",
		"--log-text-info-buffer-size=big":                 "not of the form",
		"--ipvs-exclude-cidrs=x|10.0.0.0/8":               "",
	} {
		_, r := build(line)
		if got := text(r.Problems); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The two old flags close a server, or give a port to an address without one.
func TestPortFlags(t *testing.T) {
	for _, test := range []struct {
		lines     []string
		want, say string
	}{
		{[]string{"--healthz-port=0"}, "", "--healthz-port: is deprecated: use --healthz-bind-address"},
		{[]string{"--healthz-port=10256"}, "0.0.0.0:10256", ""},
		{[]string{"--healthz-port=99"}, "0.0.0.0:10256", "--healthz-port: has no effect: the address 0.0.0.0:10256 names its port already"},
		{[]string{"--healthz-port=99", "--healthz-bind-address=192.0.2.1"}, "192.0.2.1:99", "--healthz-port: is deprecated: use --healthz-bind-address"},
		{[]string{"--healthz-bind-address=2001:db8::1"}, "[2001:db8::1]:10256", ""},
		{[]string{"--healthz-bind-address="}, "", ""},
	} {
		c, r := build(test.lines...)
		if got := text(r.Notes); r.Err() != nil || c.HealthAddress != test.want || test.say != "" && got != test.say {
			t.Errorf("%v: %q, %v, notes %q", test.lines, c.HealthAddress, r.Err(), got)
		}
	}
}

func TestUnusedIsReportedAndKept(t *testing.T) {
	c, r := build("featureGates=A=1", "portRange=0-0", "logging.flushFrequency=5s", "clientConnection.acceptContentTypes=x")
	if got := c.Tree()["featureGates"].(map[string]any); got["A"] != true {
		t.Errorf("gates: %v", got)
	}
	want := "f:1: featureGates: A=1 has no effect: Tandem has no such feature gate\n" +
		"f:2: portRange: 0-0 has no effect: kube-proxy ignores it, too\n" +
		"f:4: clientConnection.acceptContentTypes: x has no effect: the client requests protobuf"
	if got := text(r.Notes); got != want {
		t.Errorf("notes:\n%s", got)
	}
	if got := c.Tree()["portRange"]; got != "0-0" {
		t.Errorf("kept: %v", got)
	}
}

func TestDiffAndMerge(t *testing.T) {
	from, _ := build("logging.verbosity=0") // a file, too
	to, r := build("clusterCIDR=10.0.0.0/8", "healthzBindAddress=192.0.2.1:1", "logging.verbosity=4", "conntrack.min=5", "iptables.masqueradeBit=3", "portRange=1-2", "oomScoreAdj=0")
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	live, restart := config.Diff(from, to)
	if got := changes(live); got != "clusterCIDR: ->10.0.0.0/8, oomScoreAdj: -999->0, conntrack.min: 131072->5, logging.verbosity: 0->4" {
		t.Errorf("live: %s", got)
	}
	if got := changes(restart); got != "iptables.masqueradeBit: 14->3, healthzBindAddress: 0.0.0.0:10256->192.0.2.1:1" {
		t.Errorf("restart: %s", got)
	}
	merged := config.Merge(from, to)
	if l, rest := config.Diff(from, merged); changes(l) != changes(live) || len(rest) > 0 {
		t.Errorf("merged: %s and %s", changes(l), changes(rest))
	}
	if l, rest := config.Diff(merged, to); len(l) > 0 || changes(rest) != changes(restart) {
		t.Errorf("remaining: %s and %s", changes(l), changes(rest))
	}
}

// With another mode everything waits: what was set was meant for that.
func TestAnotherModeTakesOverNothing(t *testing.T) {
	from, _ := build("mode=iptables", "iptables.masqueradeAll=false")
	to, _ := build("mode=nftables", "nftables.masqueradeAll=true", "logging.verbosity=4")
	live, restart := config.Diff(from, to)
	if got := changes(restart); len(live) > 0 || got != "mode: iptables->nftables, nftables.masqueradeAll: false->true, nodePortAddresses: ->primary, logging.verbosity: 0->4" {
		t.Errorf("live %s, restart %s", changes(live), got)
	}
	if m := config.Merge(from, to); m.MasqueradeAll || m.Mode != "iptables" || m.NodePorts.Primary || m.Logging.Verbosity != 0 {
		t.Errorf("%+v", m)
	}
}

func changes(cs []config.Change) string {
	var all []string
	for _, c := range cs {
		all = append(all, c.Name+": "+c.Old+"->"+c.New)
	}
	return strings.Join(all, ", ")
}

func TestDSRIsOnWhereNothingIsSaid(t *testing.T) {
	flag := func(name, value string) config.Assignment {
		return config.Assignment{Name: name, Words: []string{value}}
	}
	for _, tt := range []struct {
		in   config.Input
		want bool
	}{
		{config.Input{}, true},
		{config.Input{Flags: []config.Assignment{flag("--enable-dsr", "false")}}, false},
		{config.Input{Flags: []config.Assignment{flag("--proxy-mode", "kernelspace")}}, false}, // kube-proxy's default
		{config.Input{Flags: []config.Assignment{flag("--proxy-mode", "kernelspace"), flag("--enable-dsr", "true")}}, true},
		{config.Input{HasFile: true}, false}, // kube-proxy's default
		{config.Input{HasFile: true, File: []config.Assignment{flag("winkernel.enableDSR", "true")}}, true},
	} {
		if c, report := config.Build(tt.in); c.Windows.DSR != tt.want || report.Err() != nil {
			t.Errorf("%+v: %t, %v", tt.in, c.Windows.DSR, report.Err())
		}
	}
}

// nodePortAddresses takes words and ranges in one list (kubernetes/kubernetes#138427),
// and reports them again. Loopback addresses are mode iptables' default, as kube-proxy's.
func TestNodePortAddresses(t *testing.T) {
	c, r := build("nodePortAddresses=10.0.0.0/8|localhost|primary")
	if r.Err() != nil || !c.NodePorts.Primary || !c.NodePorts.Localhost || c.NodePorts.All || len(c.NodePorts.Prefixes) != 1 || !onLoopback(c) {
		t.Errorf("%v %+v", r.Err(), c.NodePorts)
	}
	for mode, want := range map[string]bool{"": false, "nftables": false, "iptables": true, "ipvs": false} {
		c, r := build("mode=" + mode)
		if r.Err() != nil || onLoopback(c) != want {
			t.Errorf("mode %q: %v %+v", mode, r.Err(), c.NodePorts)
		}
	}
	if c, r := build("mode=iptables", "iptables.localhostNodePorts=false"); r.Err() != nil || onLoopback(c) {
		t.Errorf("%v %+v", r.Err(), c.NodePorts)
	}
	for _, list := range []string{"primary|primary", "localhost|10.0.0.0/8|localhost", "all|all"} {
		if _, r := build("nodePortAddresses=" + list); r.Err() == nil {
			t.Errorf("%s is accepted", list)
		}
	}
	if c, r := build("mode=nftables", "nodePortAddresses=all"); r.Err() != nil || c.NodePorts.Primary {
		t.Errorf("%v %+v", r.Err(), c.NodePorts)
	}
}

// Two gates of kube-proxy have a meaning; others have none, and files outlive them.
func TestFeatureGates(t *testing.T) {
	if _, r := build("mode=ipvs", "featureGates=KubeProxyIPVS=false"); r.Err() == nil || !strings.Contains(r.Err().Error(), "KubeProxyIPVS=false") {
		t.Errorf("mode ipvs without its gate: %v", r.Err())
	}
	for _, lines := range [][]string{
		{"mode=ipvs", "featureGates=KubeProxyIPVS=true"},
		{"mode=ipvs", "featureGates=KubeProxyIPVS=false|KubeProxyIPVS=true"},
		{"mode=nftables", "featureGates=KubeProxyIPVS=false|KubeProxyNFTablesLocalhostNodePorts=true"},
	} {
		if _, r := build(lines...); r.Err() != nil || len(r.Notes) > 0 {
			t.Errorf("%v: %v, notes %v", lines, r.Err(), r.Notes)
		}
	}
}

func onLoopback(c *config.Config) bool {
	return c.NodePorts.OnLoopbackOf(true) || c.NodePorts.OnLoopbackOf(false)
}
