// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// signingKey is the environment variable with an RSA private key in PEM (PKCS #8), as
// "openssl genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:4096" makes it. RSA is what apk,
// rpm, apt, cosign and openssl all verify, so that one key, and one fingerprint, is enough.
const signingKey = "TANDEM_SIGNING_KEY"

// key signs. All of its signatures are deterministic: of one build there is one signed release.
type key struct {
	private *rsa.PrivateKey
	entity  *openpgp.Entity // the same key, as OpenPGP has it
	config  *packet.Config
}

// sign signs what was built, in place, and takes down what changed by that:
//
//	packages/*.rpm, *.apk       signatures of their formats
//	packages/                   a repository of apt and dnf, both signed
//	images/*.sig, kubernetes/chart.sig   as cosign has signatures, each a layout to push
//	sbom/, provenance, SHA256SUMS        once more
//	SHA256SUMS.sig, .pem        of all of it, and the public key
//
// It runs no other program and builds nothing, and what it signs is what the checksums of the
// build name. Where it fails, the build is to be made again.
func (r release) sign(ctx context.Context) error {
	if err := r.recall(); err != nil {
		return err
	}
	k, err := newKey(os.Getenv(signingKey), r.when)
	if err != nil {
		return fmt.Errorf("%s: %w", signingKey, err)
	}
	if err := r.unchanged(); err != nil {
		return err
	}
	if err := errors.Join(os.Remove(filepath.Join(r.out, sums)), os.Remove(filepath.Join(r.out, provenanceFile))); err != nil {
		return err
	}
	r.only = "" // what was built is signed as a whole
	return r.steps(ctx, []step{
		{"sign packages", func(context.Context) error { return r.signPackages(k) }},
		{"sign repositories", func(context.Context) error { return r.repositories(k) }},
		{"sign images and chart", func(context.Context) error { return r.signLayouts(k) }},
		{"sbom", r.materials},
		{"provenance", r.provenance},
		{"checksums", r.checksums},
		{"sign checksums", func(context.Context) error { return r.seal(k) }},
	})
}

// recall takes what is signed from its provenance.
func (r *release) recall() (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(r.out, provenanceFile))
	if err != nil {
		return fmt.Errorf("what was built has no provenance: %w", err)
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", provenanceFile, err)
	}
	build := s.Predicate.BuildDefinition
	seconds, err := strconv.ParseInt(build.ExternalParameters["sourceDateEpoch"], 10, 64)
	if err != nil {
		return fmt.Errorf("%s: sourceDateEpoch: %w", provenanceFile, err)
	}
	r.version, r.when = build.ExternalParameters["version"], time.Unix(seconds, 0).UTC()
	for _, d := range build.ResolvedDependencies {
		r.commit = d.Digest["gitCommit"]
	}
	r.targets = slices.DeleteFunc(all(), func(t target) bool {
		_, err := os.Stat(r.program(t))
		return errors.Is(err, fs.ErrNotExist)
	})
	return nil
}

// unchanged compares what is there with the checksums of the build.
func (r release) unchanged() error {
	text, err := os.ReadFile(filepath.Join(r.out, sums))
	if err != nil {
		return err
	}
	wanted := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		wanted[name] = sum
	}
	var bad []error
	err = r.files(func(name, sum string) {
		if name != sums && wanted[name] != sum {
			bad = append(bad, fmt.Errorf("%s is not what was built, or is signed already", name))
		}
		delete(wanted, name)
	})
	for name := range wanted {
		bad = append(bad, fmt.Errorf("%s is missing", name))
	}
	return errors.Join(append(bad, err)...)
}

// seal signs the checksums, and writes the public key:
//
//	openssl dgst -sha256 -verify SHA256SUMS.pem -signature SHA256SUMS.sig SHA256SUMS
//	cosign verify-blob --key SHA256SUMS.pem --signature SHA256SUMS.sig --insecure-ignore-tlog SHA256SUMS
//
// The fingerprint of the key, which is printed, is to be compared with one from a trusted source:
//
//	openssl pkey -pubin -in SHA256SUMS.pem -outform der | sha256sum
func (r release) seal(k *key) error {
	path := filepath.Join(r.out, sums)
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	signature, err := k.sign(content)
	if err != nil {
		return err
	}
	public, err := k.public()
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(path+".sig", signature, 0o644), os.WriteFile(path+".pem", public, 0o644)); err != nil {
		return err
	}
	block, _ := pem.Decode(public)
	fmt.Printf("dist: signed; SHA-256 of the public key, %s.pem: %x\n", sums, sha256.Sum256(block.Bytes))
	return nil
}

// newKey reads a private key, whose signatures of OpenPGP are of the given time.
func newKey(text string, when time.Time) (*key, error) {
	if text == "" {
		return nil, errors.New("is not set")
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is no PKCS #8 key") // the error of the parser may quote it
	}
	private, ok := parsed.(*rsa.PrivateKey)
	if !ok || private.N.BitLen() < 3072 {
		return nil, errors.New("is no RSA key of at least 3072 bits")
	}
	k := &key{private: private, config: &packet.Config{
		DefaultHash: crypto.SHA256, Time: func() time.Time { return when }, NonDeterministicSignaturesViaNotation: packet.BoolPointer(false),
	}}
	// A part of OpenPGP's fingerprint, and so the same for all releases.
	born := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	own := *k.config
	own.Time = func() time.Time { return born }
	k.entity = &openpgp.Entity{
		PrimaryKey: packet.NewRSAPublicKey(born, &private.PublicKey), PrivateKey: packet.NewRSAPrivateKey(born, private),
		Identities: map[string]*openpgp.Identity{},
	}
	return k, k.entity.AddUserId("Tandem releases", "", "", &own)
}

// sign signs as openssl, cosign and apk do: PKCS #1 v1.5 over SHA-256.
func (k *key) sign(content []byte) ([]byte, error) {
	sum := sha256.Sum256(content)
	return rsa.SignPKCS1v15(nil, k.private, crypto.SHA256, sum[:])
}

// public is the public key in PEM.
func (k *key) public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.private.Public())
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// detached signs in OpenPGP, in binary, as rpm has it.
func (k *key) detached(content []byte) ([]byte, error) {
	var b bytes.Buffer
	err := openpgp.DetachSign(&b, k.entity, bytes.NewReader(content), k.config)
	return b.Bytes(), err
}

// armored is detached in ASCII.
func (k *key) armored(content []byte) ([]byte, error) {
	var b bytes.Buffer
	err := openpgp.ArmoredDetachSign(&b, k.entity, bytes.NewReader(content), k.config)
	return append(b.Bytes(), '\n'), err
}

// clear signs a text with the signature below it, as apt has it.
func (k *key) clear(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, k.entity.PrivateKey, k.config)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(text)
	err = errors.Join(err, w.Close())
	return append(b.Bytes(), '\n'), err
}

// openpgp is the public key as apt and rpm read it.
func (k *key) openpgp() ([]byte, error) {
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		return nil, err
	}
	err = errors.Join(k.entity.Serialize(w), w.Close())
	return append(b.Bytes(), '\n'), err
}
