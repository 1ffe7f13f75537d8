// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Plain returns a setting's value in a Config in the form of a file, in Go's
// types: bool, json.Number, string, []any, map[string]any, or nil for an empty
// list. The word that files use for an empty text becomes the empty text.
func (s *Setting) Plain(c *Config) any {
	v := s.Value(c)
	words := v.Get()
	switch v.Kind {
	case Bool:
		return isTrue(words[0])
	case Int, Number:
		return json.Number(words[0])
	case List:
		var list []any
		for _, w := range words {
			list = append(list, w)
		}
		return list
	case Map:
		all := map[string]any{}
		for _, w := range words {
			name, on, _ := strings.Cut(w, "=")
			all[name] = isTrue(on)
		}
		return all
	case Modules:
		return plainModules(words)
	}
	if words[0] == s.Empty {
		return ""
	}
	return words[0]
}

// isTrue reads a word that was checked when it was set.
func isTrue(word string) bool {
	on, _ := strconv.ParseBool(word)
	return on
}

func plainModules(words []string) any {
	var list []any
	for _, w := range words {
		pattern, level, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(level) // checked when it was set
		list = append(list, map[string]any{"filePattern": pattern, "verbosity": n})
	}
	return list
}

// Flags returns the values in effect of all flags that set something, for /flagz.
func (c *Config) Flags() map[string]string {
	all, public := map[string]string{}, c.Public()
	for _, s := range Settings() {
		if _, seen := all[s.Flag]; s.Flag == "" || seen && s.Counts != nil && !s.Counts(c.Mode) {
			continue
		}
		all[s.Flag] = s.Value(public).String()
	}
	return all
}

// Tree returns a configuration as the object that a KubeProxyConfiguration is in
// JSON, with every field, for /configz. Settings that have no field are left out.
func (c *Config) Tree() map[string]any {
	root := map[string]any{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
	preset := Default()
	for _, s := range Settings() {
		if s.Path == "" {
			continue
		}
		at, from := root, c
		if s.Counts != nil && !s.Counts(c.Mode) {
			from = &preset // the other section's value is not this one's
		}
		steps := strings.Split(s.Path, ".")
		for _, step := range steps[:len(steps)-1] {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
		at[steps[len(steps)-1]] = s.Plain(from)
	}
	return root
}
