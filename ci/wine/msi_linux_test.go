// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"archive/zip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/installers/windows"
)

// needPackers skips a test where an MSI cannot be made and signed.
func needPackers(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"wixl", "msibuild", "osslsigncode"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: this machine lacks %s: %v", tool, err)
		}
	}
}

// TestMSI installs an MSI without a word, configures and starts the service, and
// upgrades it while it runs; then it is removed. A folder for the configuration that users
// may write is closed. Everything is signed, by a
// certificate of the test.
func TestMSI(t *testing.T) {
	needPackers(t)
	p := open(t)
	s := newService(t, p)
	signer := newSigner(t)
	exe := p.path(s.exe)
	old, candidate, next := s.pack(t, "v1.2.3", exe, signer), s.pack(t, "v1.3.0-rc1", exe, signer), s.pack(t, "v1.3.0", exe, signer)
	if err := os.RemoveAll(filepath.Dir(exe)); err != nil {
		t.Fatal(err)
	}
	api := startAPI(t, apitest.Options{Plain: true})
	api.Put(slice("10.244.1.2"))

	data := filepath.Dir(p.path(configFile))
	if err := errors.Join(os.MkdirAll(data, 0o755), os.Chmod(data, 0o777)); err != nil { // as a user may have made it
		t.Fatal(err)
	}
	s.msiexec("/i", old)
	if info, err := os.Stat(data); err != nil || info.Mode().Perm()&0o002 != 0 {
		t.Errorf("%s may be written by others: %v, %v", data, info.Mode(), err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, msi := range []string{next, candidate, old} {
				_, _ = p.says("msiexec", "/x", msi, "/qn")
			}
		}
	})
	s.installedByMSI()
	s.is("STOPPED")
	s.configure(api.Address())
	s.does("start")
	s.serves("10.96.0.10", "10.244.1.2")

	for _, msi := range []string{candidate, next} {
		s.msiexec("/i", msi)
		s.installedByMSI()
		s.is("RUNNING")
	}
	if n := s.products(); n != 1 {
		t.Errorf("%d versions are installed", n)
	}
	if text, err := os.ReadFile(p.path(configFile)); err != nil || !strings.Contains(string(text), "of the test") {
		t.Errorf("the configuration after the upgrade: %v\n%s", err, text)
	}
	api.Put(slice("10.244.1.3"))
	s.serves("10.96.0.10", "10.244.1.3")
	for _, msi := range []string{old, candidate} {
		if out, err := p.says("msiexec", "/i", msi, "/qn"); err == nil {
			t.Errorf("an older one, %s, replaces a newer one: %s", msi, out)
		}
	}
	s.is("RUNNING")
	if n := s.products(); n != 1 {
		t.Errorf("%d versions are installed", n)
	}
	s.does("stop")
	s.msiexec("/x", next)
	if out, err := p.says("reg", "query", serviceKey); err == nil {
		t.Errorf("the service manager still knows the service: %s", out)
	}
	if _, err := os.Stat(exe); err == nil {
		t.Error("the program is left")
	}
	if path := s.searchPath(); strings.Contains(path, "Tandem") || !strings.Contains(path, "system32") {
		t.Errorf("PATH after the removal is %s", path)
	}
	if _, err := os.Stat(p.path(configFile)); err != nil {
		t.Errorf("the configuration of the user is gone: %v", err)
	}
	s.serves("10.96.0.10", "10.244.1.3") // what is programmed stays
	s.sound()
}

// TestMSIChecksTheConfiguration: a version that would not run with the
// configuration is not installed over one that does. Windows then brings the old
// one back, which Wine's installer cannot. A configuration that is not filled
// in keeps no version out.
func TestMSIChecksTheConfiguration(t *testing.T) {
	needPackers(t)
	p := open(t)
	s := newService(t, p)
	signer := newSigner(t)
	exe := p.path(s.exe)
	old, next, last := s.pack(t, "v1.2.3", exe, signer), s.pack(t, "v1.3.0", exe, signer), s.pack(t, "v1.4.0", exe, signer)
	if err := os.RemoveAll(filepath.Dir(exe)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, msi := range []string{last, next, old} {
			_, _ = p.says("msiexec", "/x", msi, "/qn")
		}
	})
	s.msiexec("/i", old)
	s.msiexec("/i", next)
	if err := os.WriteFile(p.path(configFile), []byte("kind: KubeProxyConfiguration\nclusterCIDR: nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := p.says("msiexec", "/i", last, "/qn"); err == nil {
		t.Errorf("a configuration with a mistake was taken: %s", out)
	}
}

const configFile = `C:\ProgramData\Tandem\config.yaml`

// msiexec runs Windows Installer without a word.
func (s *installed) msiexec(args ...string) {
	s.Helper()
	if out, err := s.prefix.says(append(append([]string{"msiexec"}, args...), "/qn")...); err != nil {
		s.Fatalf("msiexec %v: %v\n%s", args, err, out)
	}
}

// pack makes a signed MSI and checks the signatures, also that of the program in
// it.
func (s *installed) pack(t *testing.T, version, exe string, sign *windows.Signature) string {
	t.Helper()
	files, err := windows.Build(t.Context(), windows.Options{
		Exe: exe, Version: version, Arch: "amd64", License: "../../LICENSE", Out: t.TempDir(), Date: time.Unix(1700000000, 0), Sign: sign,
	})
	if err != nil {
		t.Fatal(err)
	}
	signed := filepath.Join(t.TempDir(), "tandem.exe")
	z, err := zip.OpenReader(files[1])
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if data, err := fs.ReadFile(z, "tandem/tandem.exe"); err != nil || os.WriteFile(signed, data, 0o600) != nil {
		t.Fatal(err)
	}
	for _, f := range []string{files[0], signed} {
		if out, err := exec.Command("osslsigncode", "verify", "-CAfile", sign.Certificates, "-in", f).CombinedOutput(); err != nil {
			t.Errorf("the signature of %s: %v\n%s", f, err, out)
		}
	}
	return windowsPath(files[0])
}

// installedByMSI demands what an installation leaves. Wine's installer puts the
// program's path into no quotes, as that of Windows does.
func (s *installed) installedByMSI() {
	s.Helper()
	out, err := s.prefix.says("reg", "query", serviceKey)
	if err != nil {
		s.Fatal(err, out)
	}
	for _, want := range []string{`C:\Program Files\Tandem\tandem.exe run --config="C:\ProgramData\Tandem\config.yaml" --windows-service=true`, "Start    REG_DWORD    0x2", "LocalSystem"} {
		if !strings.Contains(out, want) {
			s.Errorf("the service manager's entry lacks %s:\n%s", want, out)
		}
	}
	out, err = s.prefix.says("reg", "query", `HKLM\System\CurrentControlSet\Services\EventLog\Application\tandem`)
	if err != nil || !strings.Contains(out, `system32\EventCreate.exe`) {
		s.Errorf("the source of events: %v\n%s", err, out)
	}
	if path := s.searchPath(); strings.Count(path, `C:\Program Files\Tandem`) != 1 || !strings.Contains(path, "system32") {
		s.Errorf("PATH is %s", path)
	}
	if out, err := s.prefix.says("cmd", "/c", "tandem", "--version"); err != nil {
		s.Errorf("a shell does not find the program: %v\n%s", err, out)
	}
}

// products counts the versions that Windows lists as installed.
func (s *installed) products() int {
	s.Helper()
	out, err := s.prefix.says("reg", "query", `HKLM\Software\Microsoft\Windows\CurrentVersion\Uninstall`, "/s")
	if err != nil {
		s.Fatal(err, out)
	}
	return strings.Count(out, "Tandem service proxy")
}

// searchPath is the PATH of all users.
func (s *installed) searchPath() string {
	s.Helper()
	out, err := s.prefix.says("reg", "query", `HKLM\System\CurrentControlSet\Control\Session Manager\Environment`, "/v", "PATH")
	if err != nil {
		s.Fatal(err, out)
	}
	return out
}

// configure fills the configuration in, as an administrator would.
func (s *installed) configure(api string) {
	s.Helper()
	kubeconfig := filepath.Join(s.TempDir(), "kubeconfig")
	for file, text := range map[string]string{
		kubeconfig: "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\n" +
			"clusters: [{name: c, cluster: {server: 'http://" + api + "'}}]\n",
		s.prefix.path(configFile): "# of the test\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: kernelspace\n" +
			"clientConnection: {kubeconfig: '" + windowsPath(kubeconfig) + "'}\n" +
			"hostnameOverride: node-1\nmetricsBindAddress: 127.0.0.1:42049\nhealthzBindAddress: 127.0.0.1:42056\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// startAPI starts an API server that knows a node and the Service web.
func startAPI(t *testing.T, o apitest.Options) *apitest.Server {
	t.Helper()
	api, err := apitest.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Stop)
	api.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
	return api
}

// slice is that of web, with one endpoint.
func slice(ip string) *discoveryv1.EndpointSlice {
	name, port, proto, node := "p", int32(8080), corev1.ProtocolTCP, "node-1"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: &node}},
	}
}

// newSigner makes a certificate for the test to sign with.
func newSigner(t *testing.T) *windows.Signature {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Tandem's test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &windows.Signature{Certificates: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for file, block := range map[string]*pem.Block{
		s.Certificates: {Type: "CERTIFICATE", Bytes: cert}, s.Key: {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
