// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"strings"
	"testing"
)

// Descriptors as Windows makes them, and who could change the object.
func TestUntrusted(t *testing.T) {
	const user = "S-1-5-21-1-2-3-1001"
	for _, c := range []struct {
		name, sddl string
		rights     uint32
		want       string
	}{
		{"the folder as it is closed", "O:BAD:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)", writing, ""},
		{"a new folder in ProgramData", "O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)(A;OICIIOID;GA;;;CO)(A;OICIID;0x1200a9;;;BU)(A;CIID;DCLCRPCR;;;BU)", writing, "writable by users"},
		{"in which files cannot be replaced", "O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)(A;OICIIOID;GA;;;CO)(A;OICIID;0x1200a9;;;BU)(A;CIID;DCLCRPCR;;;BU)", replacing, ""},
		{"a file of an administrator in it", "O:BAD:AI(A;ID;FA;;;SY)(A;ID;FA;;;BA)(A;ID;0x1200a9;;;BU)", writing, ""},
		{"a file that a user has planted", "O:" + user + "D:AI(A;ID;FA;;;SY)(A;ID;FA;;;BA)", writing, "owned by " + user},
		{"copied into a user's folder", "O:BAD:AI(A;ID;FA;;;BA)(A;ID;FA;;;" + user + ")", writing, "writable by " + user},
		{"in the root of a workstation's disk", "O:BAD:AI(A;ID;FA;;;BA)(A;ID;0x1301bf;;;AU)(A;ID;0x1200a9;;;BU)", writing, "writable by authenticated users"},
		{"a disk for data, whose own folder nobody renames", "O:BAD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;;0x1301bf;;;AU)(A;OICIIO;0x1301bf;;;AU)", replacing &^ deleteRight, ""},
		{"a folder in it, which others may rename", "O:BAD:AI(A;OICIID;FA;;;BA)(A;OICIID;FA;;;SY)(A;OICIID;0x1301bf;;;AU)", replacing, "writable by authenticated users"},
		{"of Windows", "O:" + trustedInstaller + "D:PAI(A;;FA;;;" + trustedInstaller + ")(A;;0x1200a9;;;BU)", writing, ""},
		{"owner with a letter for its number", "O:S-1-5-0xaD:(A;;FA;;;SY)", writing, "owned by S-1-5-0xa"},
		{"no DACL", "O:BA", writing, "writable by everybody"},
		{"a null DACL", "O:SYD:NO_ACCESS_CONTROL", writing, "writable by everybody"},
		{"an empty DACL", "O:SYD:P", writing, ""},
		{"only new files are writable", "O:SYD:(A;OICIIO;FA;;;WD)", writing, ""},
		{"denied", "O:SYD:(D;;FA;;;WD)(A;;FA;;;SY)", writing, ""},
		{"permissions can be changed", "O:SYD:(A;;RCWD;;;BU)", replacing, "writable by users"},
		{"taken over", "O:SYD:(A;;WO;;;IU)", replacing, "writable by interactive users"},
		{"all generic rights", "O:SYD:(A;;GA;;;WD)", replacing, "writable by everybody"},
		{"generic writing", "O:SYD:(A;;GW;;;WD)", writing, "writable by everybody"},
		{"reading", "O:SYD:(A;;GRGX;;;WD)(A;;FRFX;;;AU)", writing, ""},
		{"on a condition", `O:SYD:(XA;;FW;;;BU;(Member_of {SID(BA)}))(A;;FA;;;SY)`, writing, "writable by users"},
		{"no owner: the file system keeps none", "D:(A;;FA;;;BA)", writing, ""},
		{"the owner alone", "O:SYD:NO_ACCESS_CONTROL", 0, ""},
		{"another owner", "O:" + user + "D:(A;;FA;;;SY)", 0, "owned by " + user},
		{"the owner of Windows", "O:S-1-5-21-9-9-9-1000D:(A;;FA;;;S-1-5-21-9-9-9-1000)", writing, ""},
	} {
		got, err := untrusted(c.sddl, c.rights, "S-1-5-21-9-9-9-1000")
		if err != nil || got != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, got, err, c.want)
		}
	}
}

// What is not understood is no permission.
func TestDescriptorsThatAreNotUnderstood(t *testing.T) {
	for _, sddl := range []string{
		"O:B", "O:SYD:(A;;FA;;;SY", "O:SYD:(A;;FA)", "O:SYD:(A;;QQ;;;SY)", "O:SYD:(A;;F;;;SY)", "O:SYD:(A;;0xg;;;SY)", "O:SYD:(T;;FA;;;SY)", "O:SYD:PX",
	} {
		if why, err := untrusted(sddl, writing, ""); err == nil {
			t.Errorf("%s: %q", sddl, why)
		} else if !strings.Contains(err.Error(), "security descriptor") && !strings.Contains(err.Error(), "parsing") {
			t.Errorf("%s: %v", sddl, err)
		}
	}
}
