// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// deliver adds to the bill of a program the files that users get it in, and what
// else is in those.
func (r release) deliver(doc *spdx.Document, program *spdx.Package, t target) error {
	for _, pattern := range []string{"packages/*", "windows/*", "images/*.tar"} {
		paths, err := filepath.Glob(filepath.Join(r.out, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			name := filepath.Base(path)
			if !holds(name, t) {
				continue
			}
			p, err := r.artifact(path)
			if err != nil {
				return err
			}
			doc.Packages = append(doc.Packages, p)
			relate(doc, "DOCUMENT", p, "DESCRIBES")
			relate(doc, p.PackageSPDXIdentifier, program, "CONTAINS")
			if strings.HasPrefix(name, "tandem-iptables") {
				if err := r.fromDebian(doc, p, t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// holds reports whether a file that users get holds the program for a target.
func holds(name string, t target) bool {
	format := strings.TrimPrefix(filepath.Ext(name), ".")
	switch format {
	case "tar": // the images for all architectures
		return t.image() && (t.os == "linux" || !strings.HasPrefix(name, "tandem-iptables"))
	case "msi", "zip":
		return t.os == "windows" && strings.Contains(name, t.arch)
	}
	other := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[t.arch]
	return t.os == "linux" && (strings.Contains(name, t.arch) || strings.Contains(name, other))
}

// artifact describes a file that users get.
func (r release) artifact(path string) (*spdx.Package, error) {
	name := filepath.Base(path)
	sum, err := digest(path)
	if err != nil {
		return nil, err
	}
	p := part(name, r.version, "pkg:generic/"+name+"@"+r.version)
	p.PackageFileName = name
	p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sum)}}
	return p, nil
}

// fromDebian adds Debian's packages to what an image contains: those that are
// pinned.
func (r release) fromDebian(doc *spdx.Document, image *spdx.Package, t target) error {
	pins, err := os.ReadFile(filepath.Join(r.root, "installers", "images", "debian.sha256"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(pins)) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		parts := strings.Split(strings.TrimSuffix(file, ".deb"), "_")
		if len(parts) != 3 {
			return fmt.Errorf("debian.sha256: %q is not NAME_VERSION_ARCHITECTURE.deb", file)
		}
		name, version, arch := parts[0], parts[1], parts[2]
		if arch != t.arch {
			continue
		}
		p := part(name, version, "pkg:deb/debian/"+name+"@"+version+"?arch="+arch)
		p.PackageFileName = file
		p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
		doc.Packages = append(doc.Packages, p)
		relate(doc, image.PackageSPDXIdentifier, p, "CONTAINS")
	}
	return nil
}
