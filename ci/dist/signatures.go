// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// signPackages puts signatures into the packages that have a place for one: a deb has none, the
// repository of apt is signed instead. What is signed stays as it was built.
func (r release) signPackages(k *key) error {
	for pattern, sign := range map[string]func([]byte, *key) ([]byte, error){"*.rpm": signRPM, "*.apk": signAPK} {
		paths, err := filepath.Glob(filepath.Join(r.out, "packages", pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err == nil {
				content, err = sign(content, k)
			}
			if err == nil {
				err = os.WriteFile(path, content, 0o644)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(path), err)
			}
		}
	}
	return nil
}

// apkKey is the name under which a machine has the public key in /etc/apk/keys.
const apkKey = "tandem.rsa.pub"

// signAPK puts before an apk's archives one with the signature of the first of them, which has
// the digest of the other.
func signAPK(apk []byte, k *key) ([]byte, error) {
	rest := bytes.NewReader(apk)
	control, err := gzip.NewReader(rest)
	if err != nil {
		return nil, err
	}
	control.Multistream(false)
	if _, err := io.Copy(io.Discard, control); err != nil {
		return nil, err
	}
	signature, err := k.sign(apk[:len(apk)-rest.Len()])
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err = w.WriteHeader(&tar.Header{Name: ".SIGN.RSA256." + apkKey, Mode: 0o644, Size: int64(len(signature)), Format: tar.FormatUSTAR})
	if err == nil {
		_, err = w.Write(signature)
	}
	err = errors.Join(err, w.Flush(), z.Close()) // no end of the archive: the next one goes on
	return append(b.Bytes(), apk...), err
}

// Of an rpm: lead, header of signatures, header, payload. Both headers have the same form.
const rpmLead = 96

// rpmHeader is a header of an rpm: entries that say what is where in a store.
type rpmHeader struct {
	entries []rpmEntry
	store   []byte
}

type rpmEntry struct{ Tag, Type, Offset, Count int32 }

// Types of entries, and the tags that are used here.
const (
	rpmInt16, rpmInt32, rpmString, rpmBytes, rpmStrings, rpmTexts = 3, 4, 6, 7, 8, 9

	rpmRegion    = 62  // of the header of signatures: all of its entries
	rpmSignature = 268 // OpenPGP, of the other header
)

var rpmMagic = [8]byte{0x8e, 0xad, 0xe8, 1}

// readRPM reads the header at an offset, and returns where it ends.
func readRPM(rpm []byte, at int) (h rpmHeader, end int, err error) {
	var head struct {
		Magic         [8]byte
		Entries, Size uint32
	}
	in := bytes.NewReader(rpm[min(at, len(rpm)):])
	if err := binary.Read(in, binary.BigEndian, &head); err != nil {
		return h, 0, err
	}
	if head.Magic != rpmMagic || uint64(head.Entries)*16+uint64(head.Size) > uint64(in.Len()) {
		return h, 0, errors.New("is no rpm")
	}
	h.entries, h.store = make([]rpmEntry, head.Entries), make([]byte, head.Size)
	err = errors.Join(binary.Read(in, binary.BigEndian, h.entries), binary.Read(in, binary.BigEndian, h.store))
	return h, len(rpm) - in.Len(), err
}

func (h rpmHeader) bytes() []byte {
	b := slices.Clone(rpmMagic[:])
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.entries)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.store)))
	for _, e := range h.entries {
		b = append(b, e.bytes()...)
	}
	return append(b, h.store...)
}

func (e rpmEntry) bytes() (b []byte) {
	for _, v := range []int32{e.Tag, e.Type, e.Offset, e.Count} {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// signRPM adds to the header of signatures that of the other header, which has the digest of
// the payload.
func signRPM(rpm []byte, k *key) ([]byte, error) {
	h, end, err := readRPM(rpm, rpmLead)
	if err != nil {
		return nil, err
	}
	const trailer = 16 // of the region, at the end of the store
	if len(h.entries) == 0 || h.entries[0].Tag != rpmRegion || len(h.store) < trailer {
		return nil, errors.New("has no region of signatures")
	}
	end = aligned(end)
	_, until, err := readRPM(rpm, end)
	if err != nil {
		return nil, err
	}
	signature, err := k.detached(rpm[end:until])
	if err != nil {
		return nil, err
	}
	store := h.store[:len(h.store)-trailer]
	h.entries = append(h.entries, rpmEntry{rpmSignature, rpmBytes, int32(len(store)), int32(len(signature))})
	store = append(slices.Clip(store), signature...)
	h.entries[0].Offset = int32(len(store))
	h.store = append(store, rpmEntry{rpmRegion, rpmBytes, int32(-16 * len(h.entries)), trailer}.bytes()...)
	out := append(slices.Clone(rpm[:rpmLead]), h.bytes()...)
	return append(append(out, make([]byte, aligned(len(out))-len(out))...), rpm[end:]...), nil
}

// aligned is where the header begins that comes after that of signatures.
func aligned(n int) int { return (n + 7) &^ 7 }

// signLayouts writes for each OCI layout another one with cosign's signature of it, which is
// pushed beside it, to the tag that is its name.
func (r release) signLayouts(k *key) error {
	for dir, repository := range map[string]string{
		"images/tandem": repository, "images/tandem-iptables": repository, "kubernetes/chart": "ghcr.io/tandem-proxy/charts/tandem",
	} {
		path := filepath.Join(r.out, filepath.FromSlash(dir))
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := signLayout(path, repository, k); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

func signLayout(path, repository string, k *key) error {
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(m.Manifests) != 1 {
		return fmt.Errorf("has %d entries, not one", len(m.Manifests))
	}
	digest := m.Manifests[0].Digest
	var p simpleSigning
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = repository, digest.String(), "cosign container image signature"
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	signature, err := k.sign(content)
	if err != nil {
		return err
	}
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
		Layer:       static.NewLayer(content, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
	})
	if err != nil {
		return err
	}
	to, err := layout.Write(path+".sig", empty.Index)
	if err != nil {
		return err
	}
	return to.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": signatureTag(digest)}))
}

// signatureTag is where cosign looks for signatures.
func signatureTag(digest v1.Hash) string {
	return strings.Replace(digest.String(), ":", "-", 1) + ".sig"
}

// simpleSigning is what cosign signs of an image.
type simpleSigning struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]string `json:"optional"`
}
