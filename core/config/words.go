// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// hostName is the name of a Node: what the API server takes for one, in lower
// case as kubelet registers it. A host name that nothing overrides reads as "".
func hostName(c *Config) Value {
	v := scalar(Text, &c.NodeName, func(s string) (string, error) {
		name := strings.ToLower(strings.TrimSpace(s))
		if s != "" && name == "" {
			return "", fmt.Errorf("%s is blank", quote(s))
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
		return fmt.Errorf("%s was not expanded: the container has no environment variable of this name", quote(s))
	case len(s) > 253:
		return fmt.Errorf("%s is longer than the name of a Node can be (253)", quote(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, bad) {
			return fmt.Errorf("%s cannot be the name of a Node: letters, digits, '-' and '.' only", quote(s))
		}
	}
	return nil
}

// interfaceName is the name, or the start of one, of a network interface.
func interfaceName(p *string) Value {
	return text(p, func(s string) error {
		if len(s) > 15 { // IFNAMSIZ less its NUL
			return fmt.Errorf("%s is longer than an interface name can be (15)", quote(s))
		}
		// Linux allows no names with the first of these, iptables none with the last.
		odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:!"'\`, r) }
		if strings.ContainsFunc(s, odd) {
			return fmt.Errorf("%s has a character that cannot be used in an interface name", quote(s))
		}
		return nil
	})
}

// modules is a list of "pattern=N"; of several that match a file the first
// counts.
func modules(p *[]string) Value {
	return Value{
		Kind: Modules,
		Set: func(words []string) error {
			for _, w := range words {
				pattern, level, ok := strings.Cut(w, "=")
				if _, err := strconv.ParseUint(level, 10, 31); !ok || err != nil || pattern == "" || strings.Contains(pattern, ",") {
					return fmt.Errorf("%s is not of the form pattern=N", quote(w))
				}
			}
			*p = slices.Clone(words)
			return nil
		},
		Get:    func() []string { return *p },
		fields: []any{p},
	}
}

// otherGates are the feature gates among these words that have no effect.
func otherGates(words []string) string {
	var others []string
	for _, w := range words {
		if name, _, _ := strings.Cut(w, "="); name != GateIPVS && name != GateLocalhost {
			others = append(others, w)
		}
	}
	return strings.Join(others, ",")
}

func gates(p *Gates) Value {
	return Value{
		Kind: Map,
		Set: func(words []string) error {
			if err := checkWords(Map, words); err != nil {
				return err
			}
			*p = slices.Clone(words)
			return nil
		},
		Get:    func() []string { return *p },
		fields: []any{p},
	}
}

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
		return fmt.Errorf("%s is not of the form: %s", quote(w), k)
	}
	return nil
}

// noEffect is the error of a Set that changes nothing because of another
// setting.
type noEffect string

func (e noEffect) Error() string { return "has no effect: " + string(e) }
