// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// materials writes the modules of each program, from its build information, and what it
// is delivered in, in SPDX 2.3.
func (r release) materials(context.Context) error {
	dir := filepath.Join(r.out, "sbom")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range r.targets {
		doc, err := r.bill(t)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(dir, doc.DocumentName+".spdx.json"))
		if err != nil {
			return err
		}
		err = json.Write(doc, f, json.Indent(" "))
		if errClose := f.Close(); err == nil {
			err = errClose
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bill lists the modules in the program for a target, and Go's own.
func (r release) bill(t target) (*spdx.Document, error) {
	program := r.program(t)
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	sum, err := digest(program)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: fmt.Sprintf("https://github.com/tandem-proxy/tandem/spdx/%s-%x", name, sum),
		CreationInfo: &spdx.CreationInfo{
			Created: r.when.Format("2006-01-02T15:04:05Z"), Creators: []common.Creator{{CreatorType: "Tool", Creator: "tandem-dist"}},
		},
	}
	main := module("github.com/tandem-proxy/tandem", r.version)
	main.PackageLicenseConcluded, main.PackageLicenseDeclared = "Apache-2.0", "Apache-2.0"
	main.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sum)}}
	doc.Packages = []*spdx.Package{main, module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, d := range info.Deps {
		doc.Packages = append(doc.Packages, module(used(d)))
	}
	relate(doc, "DOCUMENT", main, "DESCRIBES")
	for _, p := range doc.Packages[1:] {
		relate(doc, main.PackageSPDXIdentifier, p, "CONTAINS")
	}
	return doc, r.deliver(doc, main, t)
}

// relate adds a relationship to a document.
func relate(doc *spdx.Document, from common.ElementID, to *spdx.Package, how string) {
	doc.Relationships = append(doc.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to.PackageSPDXIdentifier)), Relationship: how,
	})
}

// used returns what is really built in where a module was replaced.
func used(m *debug.Module) (path, version string) {
	for m.Replace != nil {
		m = m.Replace
	}
	return m.Path, m.Version
}

// module describes a Go module; its licence is not declared.
func module(path, version string) *spdx.Package {
	return part(path, version, "pkg:golang/"+path+"@"+version)
}

// part describes what has a package URL.
func part(name, version, url string) *spdx.Package {
	id := sha256.Sum256([]byte(url))
	return &spdx.Package{
		PackageName: name, PackageVersion: version, PackageSPDXIdentifier: common.ElementID(fmt.Sprintf("Package-%x", id[:8])),
		PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		PackageExternalReferences: []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: "purl", Locator: url}},
	}
}
