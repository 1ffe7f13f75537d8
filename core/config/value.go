// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Value is the value of one setting in one Config, as text. It points into the
// Config and is as safe for concurrent use as that.
type Value struct {
	Kind Kind

	// Set replaces the value. Lists and maps take any number of words, all others
	// exactly one.
	Set func(words []string) error

	// Get returns what Set would take to set the same value.
	Get func() []string

	// Check validates the value by itself; nil if every value is valid.
	Check func() error

	// Choices are all values that there are; nil where that is no short list.
	Choices []string

	// fields point to what the setting has in the Config, which may be more than its text
	// tells. Empty for settings that a running proxy has no use for.
	fields []any
}

// copyFrom takes over the value of the same setting in another Config. Both share then what
// slices, maps and pointers refer to.
func (v Value) copyFrom(other Value) {
	for i, p := range v.fields {
		reflect.ValueOf(p).Elem().Set(reflect.ValueOf(other.fields[i]).Elem())
	}
}

// String returns the value as a flag would take it.
func (v Value) String() string { return strings.Join(v.Get(), ",") }

// Kind describes the form of a value in a file, for people.
type Kind string

const (
	Bool     Kind = "true or false"
	Int      Kind = "whole number"
	Number   Kind = "number"
	Duration Kind = "duration such as 30s or 1h30m"
	Text     Kind = "text"
	List     Kind = "list of texts"
	Map      Kind = "names with true or false"

	// What only the section on logging has.
	Modules  Kind = "list of filePattern with verbosity" // words are "pattern=N"
	Interval Kind = "duration such as 5s, or nanoseconds"
	Quantity Kind = "quantity such as 512 or 4Ki"
)

// Phrase returns the kind with its article, as sentences name it.
func (k Kind) Phrase() string {
	if k == Bool || k == Map {
		return string(k)
	}
	return "a " + string(k)
}

// Many reports whether values of this kind are made of several words.
func (k Kind) Many() bool { return k == List || k == Map || k == Modules }

// Zero reports whether a word is the zero value of its kind. In a file that
// means "not set" for most fields, as it does for kube-proxy.
func (k Kind) Zero(word string) bool {
	switch k {
	case Bool:
		return word == "false"
	case Duration, Interval:
		d, err := time.ParseDuration(word)
		return err == nil && d == 0
	case Int, Number, Quantity:
		n, err := strconv.ParseFloat(word, 64)
		return word == "" || err == nil && n == 0
	}
	return word == ""
}

// scalar makes a value of one word.
func scalar[T any](k Kind, p *T, parse func(string) (T, error), show func(T) string) Value {
	return Value{
		Kind: k,
		Set: func(words []string) error {
			if len(words) != 1 {
				return fmt.Errorf("takes one value, not %d", len(words))
			}
			v, err := parse(words[0])
			if err == nil {
				*p = v
			}
			return err
		},
		Get:    func() []string { return []string{show(*p)} },
		fields: []any{p},
	}
}

func boolean(p *bool) Value {
	return scalar(Bool, p, func(s string) (bool, error) {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("%s is not true or false", printable.Quoted(s))
		}
		return v, nil
	}, strconv.FormatBool)
}

// integer is a number of 32 bits, as all of kube-proxy's are.
func integer(p *int, least, most int) Value {
	v := scalar(Int, p, func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 0, 32)
		if err != nil {
			return 0, fmt.Errorf("%s is not a whole number of 32 bits", printable.Quoted(s))
		}
		return int(n), nil
	}, strconv.Itoa)
	v.Check = func() error {
		switch {
		case *p < least && most == maxInt:
			return fmt.Errorf("%d is less than %d", *p, least)
		case *p < least || *p > most:
			return fmt.Errorf("%d is outside %d to %d", *p, least, most)
		}
		return nil
	}
	return v
}

// maxInt is for integers without an upper limit.
const maxInt = 1<<31 - 1

func number(p *float32) Value {
	return scalar(Number, p, func(s string) (float32, error) {
		n, err := strconv.ParseFloat(s, 32)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return 0, fmt.Errorf("%s is not a number", printable.Quoted(s))
		}
		return float32(n), nil
	}, func(n float32) string { return strconv.FormatFloat(float64(n), 'g', -1, 32) })
}

func duration(p *time.Duration) Value {
	v := scalar(Duration, p, parseDuration, time.Duration.String)
	v.Check = func() error {
		if *p < 0 {
			return fmt.Errorf("%s is negative", *p)
		}
		return nil
	}
	return v
}

// period is a duration that cannot be 0.
func period(p *time.Duration) Value {
	v := duration(p)
	v.Check = func() error {
		if *p <= 0 {
			return fmt.Errorf("%s: must be greater than 0", *p)
		}
		return nil
	}
	return v
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s has no unit: write %ss for seconds", printable.Quoted(s), s)
	}
	return 0, fmt.Errorf("%s is not a duration such as 30s or 1h30m", printable.Quoted(s))
}

// optional is a value that may be absent. Absent it reads as the zero value.
func optional[T any](p **T, of func(*T) Value) Value {
	held := new(T)
	if *p != nil {
		*held = **p
	}
	v := of(held)
	v.fields = []any{p}
	set, check := v.Set, v.Check
	v.Set = func(words []string) error {
		err := set(words)
		if err == nil {
			fresh := *held
			*p = &fresh
		}
		return err
	}
	v.Check = func() error {
		if *p == nil || check == nil {
			return nil
		}
		return check()
	}
	return v
}

// text is any text; ok, if not nil, validates it.
func text[T ~string](p *T, ok func(string) error) Value {
	v := scalar(Text, p, func(s string) (T, error) { return T(s), nil }, func(s T) string { return string(s) })
	if ok != nil {
		v.Check = func() error { return ok(string(*p)) }
	}
	return v
}

// choice is one of a few texts.
func choice[T ~string](p *T, names ...T) Value {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	v := text(p, func(s string) error {
		if slices.Contains(list, s) {
			return nil
		}
		return fmt.Errorf("%s is not one of %s", printable.Quoted(s), strings.Join(list, ", "))
	})
	v.Choices = list
	return v
}

// hostName is the name of a Node: what the API server takes for one, in lower
// case as kubelet registers it. A host name that nothing overrides reads as "".
func hostName(c *Config) Value {
	v := scalar(Text, &c.NodeName, func(s string) (string, error) {
		name := strings.ToLower(strings.TrimSpace(s))
		if s != "" && name == "" {
			return "", fmt.Errorf("%s is blank", printable.Quoted(s))
		}
		return name, nil
	}, func(s string) string {
		if c.NodeIsHost {
			return ""
		}
		return s
	})
	v.Check = func() error { return checkHostName(c.NodeName) }
	v.fields = append(v.fields, &c.NodeIsHost)
	return v
}

func checkHostName(s string) error {
	switch {
	case s == "": // the machine's own
		return nil
	case strings.HasPrefix(s, "$("):
		return fmt.Errorf("%s was not expanded: the container has no environment variable of this name", printable.Quoted(s))
	case len(s) > 253:
		return fmt.Errorf("%s is longer than the name of a Node can be (253)", printable.Quoted(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, bad) {
			return fmt.Errorf("%s cannot be the name of a Node: letters, digits, '-' and '.' only", printable.Quoted(s))
		}
	}
	return nil
}

// interfaceName is the name, or the start of one, of a network interface.
func interfaceName(p *string) Value {
	return text(p, func(s string) error {
		if len(s) > 15 { // IFNAMSIZ less its NUL
			return fmt.Errorf("%s is longer than an interface name can be (15)", printable.Quoted(s))
		}
		// Linux allows no names with the first of these, iptables none with the last.
		odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:!"'\`, r) }
		if strings.ContainsFunc(s, odd) {
			return fmt.Errorf("%s has a character that cannot be used in an interface name", printable.Quoted(s))
		}
		return nil
	})
}

// words is a value of many words, which check validates.
func words[T ~[]string](k Kind, p *T, check func([]string) error) Value {
	return Value{
		Kind: k,
		Set: func(list []string) error {
			if err := check(list); err != nil {
				return err
			}
			*p = slices.Clone(list)
			return nil
		},
		Get:    func() []string { return *p },
		fields: []any{p},
	}
}

// checkModules accepts a list of "pattern=N"; of several that match a file the first counts.
func checkModules(list []string) error {
	for _, w := range list {
		pattern, level, ok := strings.Cut(w, "=")
		if _, err := strconv.ParseUint(level, 10, 31); !ok || err != nil || pattern == "" || strings.Contains(pattern, ",") {
			return fmt.Errorf("%s is not of the form pattern=N", printable.Quoted(w))
		}
	}
	return nil
}

// otherGates are the feature gates among these words that have no effect.
func otherGates(words []string) string {
	var others []string
	for _, w := range words {
		if name, _, _ := strings.Cut(w, "="); name != GateIPVS && name != GateLocalhost {
			others = append(others, w)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return strings.Join(others, ",") + " has no effect: Tandem has no such feature gate"
}

// otherScheduler remarks on a scheduler that is none of Linux's, which a kernel may have nevertheless.
func otherScheduler(words []string) string {
	known := []string{"rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"}
	name := strings.Join(words, ",")
	if name == "" || slices.Contains(known, name) {
		return ""
	}
	return fmt.Sprintf("Linux has no IPVS scheduler %q, only %s: it takes a kernel with a module ip_vs_%s", name, strings.Join(known, ", "), name)
}

func checkGates(list []string) error { return checkWords(Map, list) }

// unused keeps the words of a setting that Tandem has no use for. They are
// checked all the same. preset is what kube-proxy has by default.
func unused(name string, k Kind, preset ...string) func(*Config) Value {
	return func(c *Config) Value {
		return Value{
			Kind: k,
			Set: func(words []string) error {
				if err := checkWords(k, words); err != nil {
					return err
				}
				all := maps.Clone(c.Unused)
				if all == nil {
					all = map[string][]string{}
				}
				all[name] = slices.Clone(words)
				c.Unused = all
				return nil
			},
			Get: func() []string {
				if words, ok := c.Unused[name]; ok {
					return words
				}
				return preset
			},
		}
	}
}

func checkWords(k Kind, words []string) error {
	if !k.Many() && len(words) != 1 {
		return fmt.Errorf("takes one value, not %d", len(words))
	}
	var errs []error
	for _, w := range words {
		errs = append(errs, checkWord(k, w))
	}
	return errors.Join(errs...)
}

func checkWord(k Kind, w string) (err error) {
	switch k {
	case Bool:
		_, err = strconv.ParseBool(w)
	case Int:
		_, err = strconv.ParseInt(w, 0, 32)
	case Map:
		_, on, found := strings.Cut(w, "=")
		if _, err = strconv.ParseBool(on); !found {
			err = strconv.ErrSyntax
		}
	case Interval, Duration:
		_, err = parseDuration(w)
	case Quantity:
		digits := strings.TrimRight(w, "numkKMGTPEi")
		_, err = strconv.ParseFloat(digits, 64)
	}
	if err != nil {
		return fmt.Errorf("%s is not of the form: %s", printable.Quoted(w), k)
	}
	return nil
}

// noEffect is the error of a Set that changes nothing because of another
// setting.
type noEffect string

func (e noEffect) Error() string { return "has no effect: " + string(e) }

// PortRange is a range of ports, first and last included. The zero value has all.
type PortRange struct{ First, Last uint16 }

// Has reports whether a port is in the range.
func (r PortRange) Has(port uint16) bool {
	return r == PortRange{} || r.First <= port && port <= r.Last
}

// String returns the range as in 30000-32767.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func portRange(p *PortRange) Value { return scalar(Text, p, parsePortRange, PortRange.String) }

func parsePortRange(s string) (r PortRange, err error) {
	first, last, ok := strings.Cut(s, "-")
	if !ok {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || a == 0 || a > b {
		return r, fmt.Errorf("%s is not a range of ports such as 30000-32767", printable.Quoted(s))
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// withPort returns an address with a port; one that is not an IP address alone
// unchanged.
func withPort(address string, port int) string {
	if _, err := netip.ParseAddr(address); err != nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// checkListener accepts "IP:PORT", where a server listens, or nothing.
func checkListener(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%s is not IP:PORT", printable.Quoted(s))
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%s has no valid port", printable.Quoted(s))
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("%s has no valid IP address", printable.Quoted(s))
	}
	return nil
}

// checkCollector accepts the URL of a collector, or nothing.
func checkCollector(s string) error {
	u, err := url.Parse(s)
	if err != nil || s != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("%s is not a URL such as http://127.0.0.1:4318", printable.Quoted(printable.URL(s)))
	}
	return nil
}

// nodeIP is the bind address of kube-proxy. An IPv6 one moves the servers to
// IPv6, unless their own settings override it: those come later in the list.
func nodeIP(c *Config) Value {
	return scalar(Text, &c.NodeIP, func(s string) (netip.Addr, error) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return a, fmt.Errorf("%s is not an IP address", printable.Quoted(s))
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
			return nil, fmt.Errorf("%s is not a CIDR such as 10.0.0.0/8", printable.Quoted(w))
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

// Nearest returns the name that was most likely meant by a misspelt one, or "".
// Of equally near ones it is the first in the alphabet. When none is near it is
// the shortest that has it as one of its words: proxy-mode for mode.
func Nearest(name string, names []string) string {
	best, least := "", max(1, len(name)/3)+1
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(name), strings.ToLower(n), least); d < least {
			best, least = n, d
		}
	}
	if best != "" {
		return best
	}
	for _, n := range slices.Sorted(slices.Values(names)) {
		if slices.Contains(strings.Split(n, "-"), name) && (best == "" || len(n) < len(best)) {
			best = n
		}
	}
	return best
}

// distance is how many letters must be changed, added, taken away or, in names of more than
// three, swapped with the next to make b of a (optimal string alignment), as far as it matters.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && len(a) > 3 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
