// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"
)

// Passwords and tokens in the URLs of a configuration are in nothing that others see of it.
func TestPublic(t *testing.T) {
	for given, want := range map[string]string{
		"": "", "https://192.0.2.1:6443": "https://192.0.2.1:6443", "192.0.2.1:6443": "192.0.2.1:6443",
		"https://node:hunter2@192.0.2.1:6443/a": "https://192.0.2.1:6443/a",
		"http://collector:4318/?token=hunter2":  "http://collector:4318/",
		"node:hunter2@192.0.2.1:6443":           "(hidden)",
		"https://node:hunter2@%zz":              "(hidden)",
	} {
		c, without := Default(), Default()
		c.API.Server, c.TraceEndpoint = given, given
		public := c.Public()
		if public.API.Server != want || public.TraceEndpoint != want || c.API.Server != given || c.TraceEndpoint != given {
			t.Errorf("%q: %q and %q, want %q", given, public.API.Server, public.TraceEndpoint, want)
		}
		live, restart := Diff(&without, &c)
		shown := fmt.Sprint(c.Source(), c.Flags(), c.Tree(), live, restart)
		if strings.Contains(shown, "hunter2") || given != "" && len(restart) != 2 {
			t.Errorf("%q: %s", given, shown)
		}
	}
	if err := checkCollector("ftp://node:hunter2@collector"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("no collector: %v", err)
	}
}
