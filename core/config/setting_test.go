// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

func TestSettingsAreComplete(t *testing.T) {
	paths, flags := map[string]bool{}, map[string]string{}
	c := config.Default()
	for _, s := range config.Settings() {
		if s.Path != "" && paths[s.Path] || s.Name() == "--" {
			t.Errorf("%s is there twice, or has no name", s.Name())
		}
		paths[s.Path] = true
		if s.Doc == "" || !strings.HasSuffix(s.Doc, ".") {
			t.Errorf("%s: its explanation is no sentence: %q", s.Name(), s.Doc)
		}
		v := s.Value(&c)
		if v.Kind == "" || v.Set == nil || v.Get == nil {
			t.Errorf("%s: its value is incomplete", s.Name())
		}
		if !v.Kind.Many() && len(v.Get()) != 1 {
			t.Errorf("%s: a %s of %d words", s.Name(), v.Kind, len(v.Get()))
		}
		if s.Unused != "" && s.Restart != "" {
			t.Errorf("%s does nothing and needs a restart", s.Name())
		}
		// Fields that share a flag are of one kind, and count in modes of their own.
		if s.Flag != "" {
			if k, ok := flags[s.Flag]; ok && k != string(v.Kind) {
				t.Errorf("--%s sets %s and %s", s.Flag, k, v.Kind)
			}
			flags[s.Flag] = string(v.Kind)
		}
	}
}

// The printed form of a value sets the same value.
func TestGetAndSetAgree(t *testing.T) {
	for _, s := range config.Settings() {
		c := config.Default()
		before := s.Value(&c).Get()
		if err := s.Value(&c).Set(before); err != nil || !slices.Equal(s.Value(&c).Get(), before) {
			t.Errorf("%s: %q became %q, %v", s.Name(), before, s.Value(&c).Get(), err)
		}
		preset := config.Default()
		if live, restart := config.Diff(&preset, &c); len(live)+len(restart) > 0 {
			t.Errorf("%s: setting the default changes %v %v", s.Name(), live, restart)
		}
	}
}

// A value that cannot be read changes nothing and is an error.
func TestNonsenseIsRefused(t *testing.T) {
	free := map[config.Kind]bool{config.Text: true} // any text, or checked as a whole
	for _, s := range config.Settings() {
		c, preset := config.Default(), config.Default()
		v := s.Value(&c)
		if free[v.Kind] {
			continue
		}
		err := v.Set([]string{"\x1bnonsense!"})
		if err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s takes nonsense, or repeats it: %v", s.Name(), err)
		}
		if live, restart := config.Diff(&preset, &c); len(live)+len(restart) > 0 {
			t.Errorf("%s: nonsense changed %v %v", s.Name(), live, restart)
		}
	}
}

func TestFind(t *testing.T) {
	for name, want := range map[string]int{
		"mode": 1, "--proxy-mode": 1, "proxy-mode": 1, "MASQUERADE-ALL": 2, "iptables": 5, "IPTables.masqueradebit": 1,
		"logging.options": 4, "-v": 1, "nothing": 0, "": 0, "mod": 0,
	} {
		if got := config.Find(name); len(got) != want {
			t.Errorf("%q: %d settings, want %d", name, len(got), want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"masqueradeBit", "masqueradeAll", "mode", "qps"}
	for name, want := range map[string]string{
		"masqueradebit": "masqueradeBit", "masqeradeAl": "masqueradeAll", "mod": "mode", "pqs": "", "": "", "somethingElse": "",
	} {
		if got := config.Nearest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	names = []string{"detect-local-mode", "proxy-mode", "bind-address", "healthz-bind-address"}
	for name, want := range map[string]string{"mode": "proxy-mode", "local": "detect-local-mode", "bind": "bind-address", "node": "", "": ""} {
		if got := config.Nearest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// Any input is rejected, or accepted and printed in a form
// that sets the same.
func FuzzValues(f *testing.F) {
	for _, w := range []string{"", "0", "-1", "true", "1h", "10.0.0.0/8,fd00::/8", "primary", "[::1]:80", "::ffff:10.0.0.1", "a=1", "1e400", "NaN", "0x1p-2", "a.b-c", "9223372036854775807ns"} {
		f.Add(w)
	}
	f.Fuzz(func(t *testing.T, w string) {
		for _, s := range config.Settings() {
			c := config.Default()
			v := s.Value(&c)
			if v.Set([]string{w}) != nil || v.Check != nil && v.Check() != nil {
				continue
			}
			first := v.Get()
			if err := v.Set(first); err != nil || !slices.Equal(v.Get(), first) {
				t.Errorf("%s: %q became %q, then %q, %v", s.Name(), w, first, v.Get(), err)
			}
			s.Plain(&c)
		}
	})
}
