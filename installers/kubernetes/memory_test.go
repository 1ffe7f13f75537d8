// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/installers/systemd"
)

// TestMemoryLimit: the pod may have as much memory as the unit (MemoryMax), for the reason
// and with the figures that stand beside both.
func TestMemoryLimit(t *testing.T) {
	text, err := os.ReadFile("chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Linux struct {
			Resources struct{ Limits struct{ Memory string } }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	unit := systemd.Unit("/usr/bin/tandem", nil, "")
	most := regexp.MustCompile(`(?m)^MemoryMax=(\d+[KMGT])$`).FindStringSubmatch(unit)
	if most == nil {
		t.Fatalf("no MemoryMax in\n%s", unit)
	}
	// Units of systemd are powers of 1024, as Ki, Mi and Gi are.
	if pod, service := quantity(t, values.Linux.Resources.Limits.Memory), quantity(t, most[1]+"i"); pod != service {
		t.Errorf("linux.resources.limits.memory of the chart is %d bytes, MemoryMax of the unit %d", pod, service)
	}
	reason := regexp.MustCompile(`against leaks and hostile input, far above ordinary use: [^.]* MB [^.]* as much`)
	inChart, inUnit := reason.FindString(comments(string(text))), reason.FindString(comments(unit))
	if inUnit == "" || inChart != inUnit {
		t.Errorf("the reason for the number is\n%q in the chart and\n%q in the unit", inChart, inUnit)
	}
}

func quantity(t *testing.T, text string) int64 {
	t.Helper()
	q, err := resource.ParseQuantity(text)
	if err != nil || q.IsZero() {
		t.Fatalf("%q: %v", text, err)
	}
	return q.Value()
}

// comments returns the text of all comments, without line breaks.
func comments(file string) string {
	var words []string
	for line := range strings.Lines(file) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			words = append(words, strings.Fields(text)...)
		}
	}
	return strings.Join(words, " ")
}
