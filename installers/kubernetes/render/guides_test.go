// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
)

// TestInstallCommands renders the chart with what every `helm install` of the guides
// sets: a value that the chart does not know is an error.
func TestInstallCommands(t *testing.T) {
	var pages []string
	for _, name := range []string{"aks", "eks", "k3s", "kops", "kubeadm", "kubespray", "rke2", "talos"} {
		pages = append(pages, "../../../core/manual/pages/"+name+".md")
	}
	// What follows a backslash and a new line belongs to the command.
	command := regexp.MustCompile(`(?m)^\s*helm install (?:.*\\\n)*.*$`)
	setting := regexp.MustCompile(`--set(-string)? (?:'([^']*)'|((?:\$\([^)]*\)|\S)+))`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		commands := command.FindAllString(string(text), -1)
		if len(commands) == 0 {
			t.Errorf("%s installs nothing", page)
		}
		for _, c := range commands {
			values := map[string]any{}
			for _, s := range setting.FindAllStringSubmatch(c, -1) {
				parse := strvals.ParseInto
				if s[1] != "" {
					parse = strvals.ParseIntoString
				}
				if err := parse(strings.NewReplacer("=$(", "=https://$(").Replace(s[2]+s[3]), values); err != nil {
					t.Errorf("%s: %v in %s", page, err, s[0])
				}
			}
			if files, err := render(load(t), values); err != nil || len(values) == 0 || files["linux.yaml"] == "" {
				t.Errorf("%s: %v with %v of\n%s", page, err, values, c)
			}
		}
	}
}
