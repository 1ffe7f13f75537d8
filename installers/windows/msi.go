// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"crypto/sha256"
	_ "embed" // the sources of the MSI
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed tandem.wxs
var source []byte

// config is what a new installation is configured by.
//
//go:embed config.yaml
var config []byte

// Attributes of components (Windows Installer, table Component).
const (
	permanent      = 0x010
	neverOverwrite = 0x080
	wide           = 0x100 // of 64 bits
)

// Attributes of upgrades (Windows Installer, table Upgrade).
const (
	migrateFeatures = 0x001
	maxInclusive    = 0x200
)

// upgradeCode is the identity of Tandem, of all versions and for all processors.
const upgradeCode = "7C4C4DF5-0F0B-4F35-9C0C-4B7B0E0C6B1D"

// Types of custom actions (Windows Installer, table CustomAction): the new program
// is run when its file is there, and where it fails the installation does.
const (
	installedProgram = 0x012
	inScript         = 0x400
	asSystem         = 0x800
)

// templates are the words of the summary for what an MSI is for. wixl does not
// know arm64, and whatever it is for, the tables are the same.
func template(arch string) (string, error) {
	switch arch {
	case "amd64":
		return "x64;1033", nil
	case "arm64":
		return "Arm64;1033", nil
	}
	return "", fmt.Errorf("unsupported architecture %q: must be amd64 or arm64", arch)
}

// buildMSI makes an MSI of the files in a folder.
func buildMSI(ctx context.Context, stage, to string, o *Options) error {
	words, err := template(o.Arch)
	if err != nil {
		return err
	}
	version, err := productVersion(o.Version)
	if err != nil {
		return err
	}
	exe, err := os.ReadFile(filepath.Join(stage, "tandem.exe"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "tandem.wxs"), source, 0o644); err != nil {
		return err
	}
	full := strings.TrimPrefix(o.Version, "v")
	product := guid("product", full, o.Arch)
	contents := guid("package", full, o.Arch, string(exe), string(source), strings.Join(queries(version), ""), string(config))
	file := filepath.Join(stage, "tandem.msi")
	steps := [][]string{{
		"wixl", "-a", "x64", "-D", "Version=" + version, "-D", "Rank=" + strconv.Itoa(rank(o.Version)),
		"-D", "ProductCode=" + product, "-D", "UpgradeCode=" + upgradeCode, "-o", file, "tandem.wxs",
	}}
	for _, q := range queries(version) {
		steps = append(steps, []string{"msibuild", file, "-q", q})
	}
	steps = append(steps, []string{"msibuild", file, "-s", "Tandem service proxy " + full, "The Tandem authors", words, "{" + contents + "}"})
	for _, s := range steps {
		if err := call(ctx, stage, s[0], s[1:]...); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := setDates(data, o.Date); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	if err := o.Sign.sign(ctx, file); err != nil {
		return err
	}
	if data, err = os.ReadFile(file); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// queries are the changes of the tables by which an MSI gets what wixl cannot express:
// an upgrade from another version of the same three numbers, as from a candidate to
// its release, a configuration that stays, in a folder that is closed to ordinary users
// though one of them may have made it before, a restart that is for upgrades alone, the
// program's folder at the end of every user's PATH, and an upgrade that takes the old
// version away as a part of itself: where the new one cannot be installed, or would
// not run with the configuration, as a service that trusts nothing which ordinary
// users may change, Windows Installer brings the old one and its service back
// (tables Upgrade, Component, Environment, CustomAction and InstallExecuteSequence of
// Windows Installer).
func queries(version string) []string {
	const update, insert = "UPDATE `Component` SET ", "INSERT INTO "
	sequence := func(action string, at int) string {
		return fmt.Sprintf(insert+"`InstallExecuteSequence` (`Action`, `Sequence`) VALUES ('%s', %d)", action, at)
	}
	return []string{
		fmt.Sprintf(update+"`Attributes` = %d WHERE `Component` = 'Configuration'", permanent|neverOverwrite|wide),
		"DELETE FROM `Upgrade` WHERE `ActionProperty` = 'WIX_UPGRADE_DETECTED'",
		fmt.Sprintf(insert+"`Upgrade` (`UpgradeCode`, `VersionMax`, `Attributes`, `ActionProperty`) VALUES ('{%s}', '%s', %d, 'WIX_UPGRADE_DETECTED')",
			upgradeCode, version, migrateFeatures|maxInclusive),
		update + "`Condition` = 'WIX_UPGRADE_DETECTED' WHERE `Component` = 'Restart'",
		"CREATE TABLE `Environment` (`Environment` CHAR(72) NOT NULL, `Name` CHAR(255) NOT NULL LOCALIZABLE, " +
			"`Value` CHAR(255) LOCALIZABLE, `Component_` CHAR(72) NOT NULL PRIMARY KEY `Environment`)",
		insert + "`Environment` (`Environment`, `Name`, `Value`, `Component_`) VALUES ('Path', '=-*PATH', '[~];[INSTALLDIR]', 'Program')",
		"UPDATE `InstallExecuteSequence` SET `Sequence` = 1501 WHERE `Action` = 'RemoveExistingProducts'", // behind InstallInitialize
		fmt.Sprintf(insert+"`CustomAction` (`Action`, `Type`, `Source`, `Target`) VALUES ('CheckConfiguration', %d, 'tandem.exe', 'config check --compat=lenient --windows-service=true \"[DATADIR]config.yaml\"')",
			installedProgram|inScript|asSystem),
		insert + "`InstallExecuteSequence` (`Action`, `Condition`, `Sequence`) VALUES ('CheckConfiguration', 'WIX_UPGRADE_DETECTED', 4100)", // behind InstallFiles
		fmt.Sprintf(insert+"`CustomAction` (`Action`, `Type`, `Source`, `Target`) VALUES ('CloseFolders', %d, 'tandem.exe', 'run --init-only')",
			installedProgram|inScript|asSystem),
		insert + "`InstallExecuteSequence` (`Action`, `Condition`, `Sequence`) VALUES ('CloseFolders', 'NOT REMOVE', 4050)", // before the configuration is looked at
		sequence("RemoveEnvironmentStrings", 3300),
		sequence("WriteEnvironmentStrings", 5200),
	}
}

// guid derives an identity from a name: the same each time (RFC 9562,
// version 8).
func guid(parts ...string) string {
	h := sha256.Sum256([]byte("tandem-proxy.github.io\x00" + strings.Join(parts, "\x00")))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80
	return strings.ToUpper(fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}
