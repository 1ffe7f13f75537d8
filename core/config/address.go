// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/printable"
)

// listener is where a server listens, "IP:PORT"; empty is nowhere. Complete
// gives a port to an address that has none, as kube-proxy does.
func listener(p *string) Value {
	v := scalar(Text, p, func(s string) (string, error) { return s, nil }, func(s string) string { return s })
	v.Check = func() error { return checkListener(*p) }
	return v
}

// withPort returns an address with a port; one that is not an IP address alone
// unchanged.
func withPort(address string, port int) string {
	if _, err := netip.ParseAddr(address); err != nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

func checkListener(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%s is not IP:PORT", quote(s))
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%s has no valid port", quote(s))
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("%s has no valid IP address", quote(s))
	}
	return nil
}

// checkCollector accepts the URL of a collector, or nothing.
func checkCollector(s string) error {
	u, err := url.Parse(s)
	if err != nil || s != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("%s is not a URL such as http://127.0.0.1:4318", quote(printable.URL(s)))
	}
	return nil
}

// nodeIP is the bind address of kube-proxy. An IPv6 one moves the servers to
// IPv6, unless their own settings override it: those come later in the list.
func nodeIP(c *Config) Value {
	return scalar(Text, &c.NodeIP, func(s string) (netip.Addr, error) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return a, fmt.Errorf("%s is not an IP address", quote(s))
		}
		if a = a.Unmap(); a.Is6() {
			c.HealthAddress = net.JoinHostPort("::", strconv.Itoa(healthPort))
			c.HTTPAddress = net.JoinHostPort("::1", strconv.Itoa(metricsPort))
		}
		return a, nil
	}, func(a netip.Addr) string {
		if !a.IsValid() {
			return "0.0.0.0"
		}
		return a.String()
	})
}

// portOnly is one of the two old flags that give a port to an address that has
// none, and close a server when they are 0.
func portOnly(address *string) Value {
	var n int
	v := integer(&n, 0, 65535)
	set := v.Set
	v.Set = func(words []string) error {
		if err := errors.Join(set(words), v.Check()); err != nil {
			return err
		}
		if _, port, err := net.SplitHostPort(*address); err == nil && n != 0 && port != words[0] {
			return noEffect(fmt.Sprintf("the address %s names its port already", *address))
		}
		if *address = withPort(*address, n); n == 0 {
			*address = ""
		}
		return nil
	}
	v.fields = []any{address}
	v.Get = func() []string {
		if _, port, err := net.SplitHostPort(*address); err == nil {
			return []string{port}
		}
		return []string{"0"}
	}
	return v
}

// prefixes is a list of CIDRs.
func prefixes(p *[]netip.Prefix) Value {
	return Value{
		Kind: List,
		Set:  func(words []string) (err error) { *p, err = parsePrefixes(words); return err },
		Get:  func() []string { return showPrefixes(*p) },

		fields: []any{p},
	}
}

// prefixPair is the same as one text with commas in it.
func prefixPair(p *[]netip.Prefix) Value {
	return scalar(Text, p, func(s string) ([]netip.Prefix, error) {
		if s == "" {
			return nil, nil
		}
		return parsePrefixes(strings.Split(s, ","))
	}, func(ps []netip.Prefix) string { return strings.Join(showPrefixes(ps), ",") })
}

func parsePrefixes(words []string) (ps []netip.Prefix, err error) {
	for _, w := range words {
		p, err := netip.ParsePrefix(strings.TrimSpace(w))
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s is not a CIDR such as 10.0.0.0/8", quote(w))
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func showPrefixes(ps []netip.Prefix) []string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = p.String()
	}
	return words
}

const (
	primary   = "primary"
	localhost = "localhost"
	all       = "all"
	only      = "only"
)

// cutWord returns the words without one of them, and whether that was there.
func cutWord(words []string, word string) (rest []string, found bool) {
	rest = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == word })
	return rest, len(rest) < len(words)
}

// externalIPs is a list of CIDRs, and the word only.
func externalIPs(e *ExternalIPs) Value {
	return Value{
		Kind: List,
		Set: func(words []string) error {
			ranges, alone := cutWord(words, only)
			ps, err := parsePrefixes(ranges)
			if err == nil {
				e.Allowed, e.Only = ps, alone
			}
			return err
		},
		Get: func() []string {
			if e.Only {
				return append([]string{only}, showPrefixes(e.Allowed)...)
			}
			return showPrefixes(e.Allowed)
		},
		fields: []any{e},
	}
}

// nodePorts is a list of CIDRs and the words primary, localhost and all.
func nodePorts(n *NodePorts) Value {
	words := func(n *NodePorts) map[string]*bool {
		return map[string]*bool{primary: &n.Primary, localhost: &n.Localhost, all: &n.All}
	}
	return Value{
		Kind: List,
		Set: func(list []string) (err error) {
			next := NodePorts{Loopback: n.Loopback}
			for word, is := range words(&next) {
				before := len(list)
				if list, *is = cutWord(list, word); before-len(list) > 1 {
					return fmt.Errorf("names %s more than once", word)
				}
			}
			if next.Prefixes, err = parsePrefixes(list); err == nil {
				*n = next
			}
			return err
		},
		Get: func() (list []string) {
			for _, word := range []string{primary, localhost, all} {
				if *words(n)[word] {
					list = append(list, word)
				}
			}
			return append(list, showPrefixes(n.Prefixes)...)
		},
		fields: []any{&n.Prefixes, &n.Primary, &n.Localhost, &n.All},
	}
}
