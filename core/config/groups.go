// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// Group is settings about one subject, under which help shows their flags.
type Group struct {
	Title    string
	Settings []Setting
}

// Groups returns everything that can be set, in the order in which values are
// applied: what others depend on comes first, the mode before all.
func Groups() []Group {
	return []Group{
		{"Mode", modeSettings()},
		{"Rules", slices.Concat(iptablesSettings(), nftablesSettings())},
		{"IPVS", ipvsSettings()},
		{"Windows", windowsSettings()},
		{"Source of Services", sourceSettings()},
		{"Node and addresses", nodeSettings()},
		{"Health and metrics", serverSettings()},
		{"Connection tracking and process", conntrackSettings()},
		{"Log", logSettings()},
	}
}

// Settings returns the settings of all groups.
func Settings() (all []Setting) {
	for _, g := range Groups() {
		all = append(all, g.Settings...)
	}
	return all
}

// Find returns the settings of a name: a path, a flag with or without its
// dashes, or a section such as "ipvs". The case does not matter.
func Find(name string) (found []Setting) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	flag := strings.TrimLeft(name, "-")
	for _, s := range Settings() {
		path := strings.ToLower(s.Path)
		if path != "" && (path == name || strings.HasPrefix(path, name+".")) || s.Flag != "" && s.Flag == flag {
			found = append(found, s)
		}
	}
	return found
}
