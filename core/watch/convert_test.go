// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func nets(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func ptr[T any](v T) *T { return &v }

// expect compares problems with lines of the form "Reason: detail".
func expect(t *testing.T, problems []model.Problem, want ...string) {
	t.Helper()
	var got []string
	for _, p := range problems {
		got = append(got, p.Why.String()+": "+p.Detail)
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestServiceAddr(t *testing.T) {
	good := map[string]string{
		"10.0.0.1": "10.0.0.1", "255.255.255.254": "255.255.255.254", "8.8.8.8": "8.8.8.8",
		"fd00::1": "fd00::1", "FD00:0:0::01": "fd00::1", "2001:db8::a": "2001:db8::a", "fd00:ec2::253": "fd00:ec2::253",
	}
	for in, want := range good {
		if got, remark := serviceAddr(in); remark != "" || got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, rejected as %q", in, got, remark)
		}
	}
	bad := map[string]string{
		"127.0.0.1": "loopback", "127.8.9.1": "loopback", "::1": "loopback",
		"169.254.169.254": "link-local", "169.254.0.1": "link-local", "fe80::1": "link-local", "fd00:ec2::254": "cloud metadata",
		"0.0.0.0": "unspecified", "::": "unspecified",
		"224.0.0.1": "multicast", "239.1.1.1": "multicast", "ff02::1": "multicast", "ff0e::1": "multicast",
		"255.255.255.255": "broadcast",
		"::ffff:10.0.0.1": "IPv4-mapped", "::ffff:a00:1": "IPv4-mapped",
		"fe80::1%eth0": "has a zone", "fd00::1%1": "has a zone",
		"": "not an IP address", "abc": "not an IP address", "10.0.0.1/24": "not an IP address",
		"0100.0.0.1": "not an IP address", "010.0..1": "not an IP address", "010.0.0.256": "not an IP address", "-01.0.0.1": "not an IP address", "10.0.0.256": "not an IP address", "10.0.0": "not an IP address",
		" 10.0.0.1": "not an IP address", "1.2.3.4\n": "not an IP address", "0x0a.0.0.1": "not an IP address",
	}
	for in, want := range bad {
		if got, remark := serviceAddr(in); remark != want {
			t.Errorf("%q: %s, rejected as %q, want %q", in, got, remark, want)
		}
	}
}

func TestPortName(t *testing.T) {
	for _, s := range []string{"", "http", "a", "0", "a-b", strings.Repeat("x", 63)} {
		if !portName(s) {
			t.Errorf("%q was rejected", s)
		}
	}
	for _, s := range []string{`"; }`, "a\nb", "$(id)", "-a", "a-", "HTTP", "é", "🙂", "a_b", "a.b", " ", strings.Repeat("x", 64)} {
		if portName(s) {
			t.Errorf("%q was let through", s)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"default/web-1.x": "default/web-1.x", "fd00::1/64": "fd00::1/64", "": `""`, "a b": `"a b"`, "a\x1b[31m": `"a\x1b[31m"`,
		"é": `"é"`, `"`: `"\""`, strings.Repeat("x", 300): strings.Repeat("x", 80) + "...",
	} {
		if got := shown(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	f := faults{kind: "Service", meta: &metav1.ObjectMeta{Namespace: "a", Name: "b\n"}}
	for i := range 1000 {
		f.bad(model.WhyBadAddress, at("spec.externalIPs", i, ""), "x", "")
	}
	ps := f.problems()
	if len(ps) != model.MaxProblems || ps[19].Detail != "spec.externalIPs[19]: x, and 980 more problems" {
		t.Errorf("%d problems, the last is %q", len(ps), ps[len(ps)-1].Detail)
	}
	if ps[0].Object != `Service "a/b\n"` {
		t.Errorf("object is %s", ps[0].Object)
	}
	if p := FieldPath(ps[19]); p != "spec.externalIPs[19]" {
		t.Errorf("path is %q", p)
	}
	if p := FieldPath(model.Problem{Detail: "ports[0].port (missing)"}); p != "ports[0].port" {
		t.Errorf("path is %q", p)
	}
	if p := FieldPath(model.Problem{Detail: "spec"}); p != "spec" {
		t.Errorf("path is %q", p)
	}
}
