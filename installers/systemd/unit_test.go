// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"strings"
	"testing"
)

func TestUnit(t *testing.T) {
	unit := Unit("/opt/my tools/tandem", []string{"run", "--config=/etc/a%b.yaml", `--node=$x"\{{y}}`}, "/etc/a%b.yaml")
	for _, line := range []string{
		"ConditionPathExists=/etc/a%%b.yaml",
		`ExecStart="/opt/my tools/tandem" run "--config=/etc/a%%b.yaml" "--node=$$x\"\\\x7b\x7by}}" $TANDEM_FLAGS`,
		`ExecStartPre=-+"/opt/my tools/tandem" run "--config=/etc/a%%b.yaml" "--node=$$x\"\\\x7b\x7by}}" --init-only $TANDEM_FLAGS`,
		"RuntimeDirectory=tandem", "RuntimeDirectoryMode=0700", "RuntimeDirectoryPreserve=yes", // platform.Lock
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, unit)
		}
	}
	for _, bound := range []string{"MemoryHigh=3G", "MemoryMax=4G"} {
		if !strings.Contains(unit, "\n"+bound+"\n") {
			t.Errorf("no %s", bound)
		}
	}
	if always := Unit("/bin/tandem", nil, ""); strings.Contains(always, "\nCondition") {
		t.Error("a condition without a file")
	}
}

// With any argument, the unit keeps its lines, and nothing in it is left
// for templates, specifiers or variables.
func FuzzUnit(f *testing.F) {
	f.Add("/usr/bin/tandem", "--node=a b")
	f.Add("\n[Service]\n", "%n$HOME{{.}}@COMMAND@")
	plain := strings.Count(Unit("p", []string{"a"}, ""), "\n")
	f.Fuzz(func(t *testing.T, program, argument string) {
		unit := Unit(program, []string{argument}, "")
		if n := strings.Count(unit, "\n"); n != plain {
			t.Fatalf("%d lines instead of %d", n, plain)
		}
		if strings.Contains(unit, "{{") {
			t.Fatal("a template")
		}
	})
}
