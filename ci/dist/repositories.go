// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/blakesmith/ar"
)

// repositories makes of the folder of packages a repository of apt, in its flat form, and one of
// dnf, both signed. Files that are attached to a release are a repository of apt, too:
//
//	deb [signed-by=/etc/apt/keyrings/tandem.asc] URL-OF-THE-FOLDER/ /
//	baseurl=URL-OF-THE-FOLDER, repo_gpgcheck=1, gpgcheck=1
func (r release) repositories(k *key) error {
	dir := filepath.Join(r.out, "packages")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	public, err := k.openpgp()
	if err != nil {
		return err
	}
	plain, err := k.public()
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "tandem.asc"), public, 0o644), os.WriteFile(filepath.Join(dir, apkKey), plain, 0o644),
		r.apt(dir, k), r.dnf(dir, k))
}

// apt lists the debs of a folder, and signs the list.
func (r release) apt(dir string, k *key) error {
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, deb := range debs {
		about, err := control(deb)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
		content, err := os.ReadFile(deb)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s\nFilename: %s\nSize: %d\nSHA256: %x\n\n", bytes.TrimSpace(about), filepath.Base(deb), len(content), sha256.Sum256(content))
	}
	short, err := zip(list.Bytes())
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Origin: Tandem\nLabel: Tandem\nSuite: stable\nDate: %s\nDescription: Tandem %s\nSHA256:\n", r.when.Format(time.RFC1123), r.version)
	for name, content := range map[string][]byte{"Packages": list.Bytes(), "Packages.gz": short} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(&b, " %x %d Packages\n %x %d Packages.gz\n", sha256.Sum256(list.Bytes()), list.Len(), sha256.Sum256(short), len(short))
	signed, err := k.clear([]byte(b.String()))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "InRelease"), signed, 0o644)
}

func zip(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(content)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// control returns what a deb says of itself: deb(5).
func control(deb string) ([]byte, error) {
	f, err := os.Open(deb)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for members := ar.NewReader(f); ; {
		h, err := members.Next()
		if err != nil {
			return nil, fmt.Errorf("control.tar.gz: %w", err)
		}
		if strings.TrimSuffix(h.Name, "/") != "control.tar.gz" {
			continue
		}
		z, err := gzip.NewReader(members)
		if err != nil {
			return nil, err
		}
		for in := tar.NewReader(z); ; {
			h, err := in.Next()
			if err != nil {
				return nil, fmt.Errorf("control: %w", err)
			}
			if path.Clean(h.Name) == "control" {
				return io.ReadAll(io.LimitReader(in, 1<<20))
			}
		}
	}
}

// Tags of an rpm's header that repositories repeat, and one of the signatures'.
const (
	rpmName, rpmVersion, rpmRelease, rpmSummary, rpmDescription   = 1000, 1001, 1002, 1004, 1005
	rpmBuildTime, rpmBuildHost, rpmSize, rpmVendor, rpmLicense    = 1006, 1007, 1009, 1011, 1014
	rpmPackager, rpmGroup, rpmURL, rpmArch, rpmModes, rpmSource   = 1015, 1016, 1020, 1022, 1030, 1044
	rpmProvides, rpmProvidesFlags, rpmProvidesVersions, rpmFolder = 1047, 1112, 1113, 1116
	rpmRequires, rpmRequiresFlags, rpmRequiresVersions            = 1049, 1048, 1050
	rpmNames, rpmFolders                                          = 1117, 1118
	rpmPayloadSize                                                = 1007
	rpmEqual, rpmRpmlib                                           = 8, 1 << 24 // flags of a dependency
)

// texts returns a value that is texts, or nil.
func (h rpmHeader) texts(tag int32) (all []string) {
	for _, e := range h.entries {
		if e.Tag != tag || e.Type != rpmString && e.Type != rpmStrings && e.Type != rpmTexts || e.Offset < 0 || int(e.Offset) > len(h.store) {
			continue
		}
		rest := string(h.store[e.Offset:])
		for range min(int(e.Count), len(rest)) {
			text, after, _ := strings.Cut(rest, "\x00")
			all, rest = append(all, text), after
		}
	}
	return all
}

func (h rpmHeader) text(tag int32) string { return strings.Join(h.texts(tag), " ") }

// numbers returns a value that is numbers, or nil.
func (h rpmHeader) numbers(tag int32) (all []int) {
	for _, e := range h.entries {
		size := map[int32]int{rpmInt16: 2, rpmInt32: 4}[e.Type]
		if e.Tag != tag || size == 0 || e.Offset < 0 || e.Count < 0 || int(e.Offset)+int(e.Count)*size > len(h.store) {
			continue
		}
		for b := h.store[e.Offset:]; len(all) < int(e.Count); b = b[size:] {
			if size == 2 {
				all = append(all, int(binary.BigEndian.Uint16(b)))
			} else {
				all = append(all, int(binary.BigEndian.Uint32(b)))
			}
		}
	}
	return all
}

func (h rpmHeader) number(tag int32) int {
	all := h.numbers(tag)
	if len(all) == 0 {
		return 0
	}
	return all[0]
}

// listed is what a repository of dnf says of an rpm.
type listed struct {
	File, Sum                                                string
	Name, Arch, Version, Release, Summary, Description       string
	Packager, URL, License, Vendor, Group, BuildHost, Source string
	Time, Size, Installed, Archive, HeaderStart, HeaderEnd   int
	Provides, Requires                                       []relation
	Files                                                    []rpmFile
}

type relation struct{ Name, Version, Release string } // equal to the version, if there is one

type rpmFile struct{ Name, Type string } // type is dir, or "" for a file

func list(file string) (*listed, error) {
	rpm, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	signatures, end, err := readRPM(rpm, rpmLead)
	if err != nil {
		return nil, err
	}
	start := aligned(end)
	h, end, err := readRPM(rpm, start)
	if err != nil {
		return nil, err
	}
	l := &listed{
		File: filepath.Base(file), Sum: fmt.Sprintf("%x", sha256.Sum256(rpm)), Size: len(rpm), HeaderStart: start, HeaderEnd: end,
		Name: h.text(rpmName), Arch: h.text(rpmArch), Version: h.text(rpmVersion), Release: h.text(rpmRelease), Summary: h.text(rpmSummary), Description: h.text(rpmDescription),
		Packager: h.text(rpmPackager), URL: h.text(rpmURL), License: h.text(rpmLicense), Vendor: h.text(rpmVendor), Group: h.text(rpmGroup), BuildHost: h.text(rpmBuildHost), Source: h.text(rpmSource),
		Time: h.number(rpmBuildTime), Installed: h.number(rpmSize), Archive: signatures.number(rpmPayloadSize),
		Provides: h.relations(rpmProvides, rpmProvidesFlags, rpmProvidesVersions), Requires: h.relations(rpmRequires, rpmRequiresFlags, rpmRequiresVersions),
	}
	folders, in, modes := h.texts(rpmFolders), h.numbers(rpmFolder), h.numbers(rpmModes)
	for i, name := range h.texts(rpmNames) {
		if i >= len(in) || i >= len(modes) || in[i] >= len(folders) {
			return nil, errors.New("lists files without their folders or modes")
		}
		f := rpmFile{Name: folders[in[i]] + name}
		if modes[i]&0o170000 == 0o040000 {
			f.Type = "dir"
		}
		l.Files = append(l.Files, f)
	}
	return l, nil
}

// relations are those to packages, not to what rpm itself can do.
func (h rpmHeader) relations(names, flags, versions int32) (all []relation) {
	how, which := h.numbers(flags), h.texts(versions)
	for i, name := range h.texts(names) {
		if i >= len(how) || i >= len(which) || how[i]&rpmRpmlib != 0 || strings.HasPrefix(name, "rpmlib(") {
			continue
		}
		r := relation{Name: name}
		if how[i]&rpmEqual != 0 {
			r.Version, r.Release, _ = strings.Cut(which[i], "-")
		}
		all = append(all, r)
	}
	return all
}

// dnf lists the rpms of a folder in repodata, and signs the list of these lists.
func (r release) dnf(dir string, k *key) error {
	rpms, err := filepath.Glob(filepath.Join(dir, "*.rpm"))
	if err != nil {
		return err
	}
	var all []*listed
	for _, file := range rpms {
		l, err := list(file)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		all = append(all, l)
	}
	to := filepath.Join(dir, "repodata")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	type part struct {
		Type, Sum, Open string
		Size, OpenSize  int
	}
	var parts []part
	texts := template.Must(template.New("").Funcs(template.FuncMap{"xml": escaped}).Parse(repodata))
	for _, kind := range []string{"primary", "filelists", "other"} {
		var b bytes.Buffer
		if err := texts.ExecuteTemplate(&b, kind, all); err != nil {
			return err
		}
		short, err := zip(b.Bytes())
		if err != nil {
			return err
		}
		parts = append(parts, part{kind, fmt.Sprintf("%x", sha256.Sum256(short)), fmt.Sprintf("%x", sha256.Sum256(b.Bytes())), len(short), b.Len()})
		if err := os.WriteFile(filepath.Join(to, kind+".xml.gz"), short, 0o644); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := texts.ExecuteTemplate(&b, "repomd", map[string]any{"Time": r.when.Unix(), "Parts": parts}); err != nil {
		return err
	}
	signature, err := k.armored(b.Bytes())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(to, "repomd.xml"), b.Bytes(), 0o644), os.WriteFile(filepath.Join(to, "repomd.xml.asc"), signature, 0o644))
}

func escaped(text string) (string, error) {
	var b strings.Builder
	err := xml.EscapeText(&b, []byte(text))
	return b.String(), err
}

// repodata are the files of a repository of dnf, as createrepo names them.
const repodata = `{{define "relations"}}{{range .}}        <rpm:entry name="{{xml .Name}}"{{if .Version}} flags="EQ" epoch="0" ver="{{xml .Version}}"{{if .Release}} rel="{{xml .Release}}"{{end}}{{end}}/>
{{end}}{{end}}
{{define "package"}}  <package pkgid="{{.Sum}}" name="{{xml .Name}}" arch="{{xml .Arch}}">
    <version epoch="0" ver="{{xml .Version}}" rel="{{xml .Release}}"/>
{{end}}
{{define "primary"}}<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="{{len .}}">
{{range .}}  <package type="rpm">
    <name>{{xml .Name}}</name>
    <arch>{{xml .Arch}}</arch>
    <version epoch="0" ver="{{xml .Version}}" rel="{{xml .Release}}"/>
    <checksum type="sha256" pkgid="YES">{{.Sum}}</checksum>
    <summary>{{xml .Summary}}</summary>
    <description>{{xml .Description}}</description>
    <packager>{{xml .Packager}}</packager>
    <url>{{xml .URL}}</url>
    <time file="{{.Time}}" build="{{.Time}}"/>
    <size package="{{.Size}}" installed="{{.Installed}}" archive="{{.Archive}}"/>
    <location href="{{xml .File}}"/>
    <format>
      <rpm:license>{{xml .License}}</rpm:license>
      <rpm:vendor>{{xml .Vendor}}</rpm:vendor>
      <rpm:group>{{xml .Group}}</rpm:group>
      <rpm:buildhost>{{xml .BuildHost}}</rpm:buildhost>
      <rpm:sourcerpm>{{xml .Source}}</rpm:sourcerpm>
      <rpm:header-range start="{{.HeaderStart}}" end="{{.HeaderEnd}}"/>
      <rpm:provides>
{{template "relations" .Provides}}      </rpm:provides>
{{if .Requires}}      <rpm:requires>
{{template "relations" .Requires}}      </rpm:requires>
{{end}}    </format>
  </package>
{{end}}</metadata>
{{end}}
{{define "filelists"}}<?xml version="1.0" encoding="UTF-8"?>
<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="{{len .}}">
{{range .}}{{template "package" .}}{{range .Files}}    <file{{if .Type}} type="{{.Type}}"{{end}}>{{xml .Name}}</file>
{{end}}  </package>
{{end}}</filelists>
{{end}}
{{define "other"}}<?xml version="1.0" encoding="UTF-8"?>
<otherdata xmlns="http://linux.duke.edu/metadata/other" packages="{{len .}}">
{{range .}}{{template "package" .}}  </package>
{{end}}</otherdata>
{{end}}
{{define "repomd"}}<?xml version="1.0" encoding="UTF-8"?>
<repomd xmlns="http://linux.duke.edu/metadata/repo" xmlns:rpm="http://linux.duke.edu/metadata/rpm">
  <revision>{{.Time}}</revision>
{{$time := .Time}}{{range .Parts}}  <data type="{{.Type}}">
    <checksum type="sha256">{{.Sum}}</checksum>
    <open-checksum type="sha256">{{.Open}}</open-checksum>
    <location href="repodata/{{.Type}}.xml.gz"/>
    <timestamp>{{$time}}</timestamp>
    <size>{{.Size}}</size>
    <open-size>{{.OpenSize}}</open-size>
  </data>
{{end}}</repomd>
{{end}}`
