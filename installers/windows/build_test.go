// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestProductVersion(t *testing.T) {
	for in, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-4-g0123abc-dirty": "1.2.3", "v255.255.65535": "255.255.65535",
		"1.2.3+build.7": "1.2.3", "0123abc": "0.0.0", "devel": "0.0.0",
		"v256.0.0": "", "1.2": "", "1.2.3.4": "", "1.2.x": "", "1.2.65536": "",
	} {
		got, err := productVersion(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
}

// Of versions that Windows Installer takes for one, the newer has the higher rank.
func TestRank(t *testing.T) {
	rising := []string{
		"v1.3.0-pre", "1.3.0-alpha", "1.3.0-alpha.2", "v1.3.0-beta1", "v1.3.0-rc1", "1.3.0-rc1-4-g0123abc", "v1.3.0-RC.2", "1.3.0-rc10",
		"v1.3.0-rc99999999999999999999", "v1.3.0", "v1.3.0-4-g0123abc-dirty", "1.3.0-12-g0123abc", "1.3.0-99999-g0123abc",
	}
	for i, v := range rising {
		if i > 0 && rank(v) <= rank(rising[i-1]) {
			t.Errorf("%s has %d, and %s %d", rising[i-1], rank(rising[i-1]), v, rank(v))
		}
		if n := rank(v); n < 1e7 || n >= 1e8 {
			t.Errorf("%s has %d, which is not of eight digits", v, n)
		}
	}
	for _, same := range []string{"1.3.0", "v1.3.0+build.7-rc1", "v1.3.0-dirty"} {
		if rank(same) != rank("v1.3.0") {
			t.Errorf("%s has %d", same, rank(same))
		}
	}
}

// A candidate and its release are two products of one version: Windows installs
// no other package of a product that is there (error 1638).
func TestProductsOfOneVersion(t *testing.T) {
	codes := map[string]string{}
	for _, version := range []string{"v1.3.0-rc1", "v1.3.0-rc2", "v1.3.0"} {
		o := options(t, "amd64")
		o.Version = version
		build(t, o)
		msi := filepath.Join(o.Out, "tandem-"+version[1:]+"-windows-amd64.msi")
		for _, query := range [][]string{{"export", msi, "Property"}, {"suminfo", msi}} {
			out, err := exec.Command("msiinfo", query...).Output()
			if err != nil {
				t.Fatal(err)
			}
			found := identity.FindStringSubmatch(string(out))
			if found == nil {
				t.Fatalf("no identity in\n%s", out)
			}
			if other := codes[found[1]]; other != "" {
				t.Errorf("%s and %s have one identity: %s", other, version, found[0])
			}
			codes[found[1]] = version
		}
	}
}

// identity is that of a product, and that of a package.
var identity = regexp.MustCompile(`(?:ProductCode\t|Revision number \(UUID\): )(\{[0-9A-F-]{36}\})`)

func FuzzProductVersion(f *testing.F) {
	f.Add("v1.2.3-4-gabc")
	f.Add("1.2")
	f.Fuzz(func(t *testing.T, v string) {
		if n := rank(v); n < 1e7 || n >= 1e8 {
			t.Errorf("%q has rank %d", v, n)
		}
		got, err := productVersion(v)
		if err != nil {
			return
		}
		if again, err := productVersion(got); err != nil || again != got || strings.Count(got, ".") != 2 {
			t.Errorf("%q becomes %q, and that %q (%v)", v, got, again, err)
		}
	})
}

func FuzzSetDates(f *testing.F) {
	f.Add([]byte(strings.Repeat("\x00", 28) + summaryFormat + "\x30\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := len(data)
		_ = setDates(data, time.Unix(0, 0)) // it must not panic
		if len(data) != before {
			t.Error("the length has changed")
		}
	})
}

func TestGUID(t *testing.T) {
	if a, b := guid("product", "1.2.3", "amd64"), guid("product", "1.2.4", "amd64"); a == b || len(a) != 36 || a != guid("product", "1.2.3", "amd64") {
		t.Errorf("%s, %s", a, b)
	}
}

// options are those of a test, which is skipped where the tools are missing.
func options(t *testing.T, arch string) Options {
	t.Helper()
	for _, tool := range []string{"wixl", "msibuild", "msiinfo"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: this machine lacks wixl or msitools: %v", err)
		}
	}
	o := Options{Version: "v1.2.3", Arch: arch, Out: t.TempDir(), Date: time.Unix(1700000000, 0), Exe: filepath.Join(t.TempDir(), "x.exe"), License: "../../LICENSE"}
	if err := os.WriteFile(o.Exe, bytes.Repeat([]byte("not a program "), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestBuild: the same input makes the same files, and what wixl cannot express is in
// the tables.
func TestBuild(t *testing.T) {
	for arch, template := range map[string]string{"amd64": "x64;1033", "arm64": "Arm64;1033"} {
		o := options(t, arch)
		first := build(t, o)
		time.Sleep(1100 * time.Millisecond) // times in an MSI are of seconds
		o.Out = t.TempDir()
		second := build(t, o)
		for name, data := range first {
			if !bytes.Equal(data, second[name]) {
				t.Errorf("%s is different the second time", name)
			}
		}
		msi := filepath.Join(o.Out, "tandem-1.2.3-windows-"+arch+".msi")
		for query, want := range map[string]string{
			"suminfo":                "Template: " + template,
			"export Component":       "Configuration\t{5E0E5C0B-6E0C-4E3B-8B8F-5D5A3D6A1B03}\tDATADIR\t400\t\tconfig.yaml",
			"export Upgrade":         "{7C4C4DF5-0F0B-4F35-9C0C-4B7B0E0C6B1D}\t\t1.2.3\t\t513\t\tWIX_UPGRADE_DETECTED",
			"export LaunchCondition": "Installed OR NOT (INSTALLEDRANK > 50000000)\tA newer Tandem is installed. Remove it first.",
			"export RegLocator":      "Rank\t2\tSOFTWARE\\Tandem\\Rank\t1.2.3\t18", // in the registry of 64 bits
			"export ServiceInstall":  "run --config=\"[DATADIR]config.yaml\" --windows-service=true",
			"export ServiceControl":  "Restart\ttandem\t1",
			"export Environment":     "Path\t=-*PATH\t[~];[INSTALLDIR]\tProgram",
			"export Registry":        `EventLog\Application\tandem`,
			"export CustomAction":    "CheckConfiguration\t3090\ttandem.exe\tconfig check --compat=lenient --windows-service=true \"[DATADIR]config.yaml\"\t\nCloseFolders\t3090\ttandem.exe\trun --init-only",
			// Inside of what is rolled back, which InstallInitialize begins at 1500.
			"export InstallExecuteSequence": "RemoveExistingProducts\t\t1501",
		} {
			words := strings.Fields(query)
			out, err := exec.Command("msiinfo", append([]string{words[0], msi}, words[1:]...)...).Output()
			if err != nil || !strings.Contains(strings.ReplaceAll(string(out), "\r", ""), want) {
				t.Errorf("%s: %s (%v), want %q in\n%s", arch, query, err, want, out)
			}
		}
	}
}

// build returns what is made, by name.
func build(t *testing.T, o Options) map[string][]byte {
	t.Helper()
	files, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = data
	}
	return all
}

func TestZip(t *testing.T) {
	o := options(t, "amd64")
	build(t, o)
	z, err := zip.OpenReader(filepath.Join(o.Out, "tandem-1.2.3-windows-amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "tandem/LICENSE.txt tandem/config.yaml tandem/tandem.exe" {
		t.Errorf("it holds %s", got)
	}
}

// What cannot be made is refused, and leaves nothing.
func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"no such file":     func(o *Options) { o.Exe += ".none" },
		"unsupported arch": func(o *Options) { o.Arch = "riscv64" },
		"of three numbers": func(o *Options) { o.Version = "1.2" },
	} {
		o := options(t, "amd64")
		change(&o)
		_, err := Build(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if left, _ := os.ReadDir(o.Out); len(left) > 0 {
			t.Errorf("%s: %d files are left", want, len(left))
		}
	}
}
