# shellcheck shell=bash disable=SC2034
# The release of Kubernetes that install.sh downloads, and the checksums of its files. Sourced, never run.
#
# Two places together have all three programs: an archive of controller-tools has etcd and kube-apiserver, as envtest
# uses them, and the site of Kubernetes has kube-controller-manager. For another release, change the version and all
# four checksums, then run `make test`.

release=1.36.2

# What stands in envtest-releases.yaml of github.com/kubernetes-sigs/controller-tools.
declare -A archive_sha512=(
    [amd64]=ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dcf30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08
    [arm64]=2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae28181afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac
)

# What stands beside the program, at its address with .sha256 at the end.
declare -A controller_manager_sha256=(
    [amd64]=6332e45474baf6362f50394d8f7c6002274db04d68fe51dbe2229ef5c0b21e3c
    [arm64]=976242c5e71e4c0d2cc925ca34e715112cd3379ef7c4292c661546073790ce56
)
