/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "border_check.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace border {

static const char BASE_TABLE[] = "_ZTV17nixlBackendEngine", UCX_TABLE[] = "_ZTV13nixlUcxEngine";
/* The functions in the order of the table, which begins with two destructors. The first thirteen are pure virtual in
 * the base class. */
static const char *const SLOTS[] = {
	"supportsRemote", "supportsLocal", "supportsNotif", "getSupportedMems", "registerMem", "deregisterMem", "connect",
	"disconnect", "unloadMD", "prepXfer", "postXfer", "checkXfer", "releaseReqH", "prepMemView", "prepMemView",
	"releaseMemView", "getPublicData", "getConnInfo", "loadRemoteConnInfo", "loadRemoteMD", "loadLocalMD", "getNotifs",
	"genNotif", "queryMem", "estimateXferCost"};
constexpr size_t METHODS = sizeof SLOTS / sizeof *SLOTS, BEFORE = 4, TABLE_BYTES = (BEFORE + METHODS) * 8;

#ifdef __aarch64__
constexpr uint32_t BY_NAME = R_AARCH64_ABS64;
#else
constexpr uint32_t BY_NAME = R_X86_64_64;
#endif

namespace {

/* A mapped file. A read beyond its end finds nothing. */
class File {
public:
	explicit File(const std::string &path)
	{
		struct stat st;
		int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
			void *at = mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
			if (at != MAP_FAILED)
				base = static_cast<const char *>(at), bytes = static_cast<size_t>(st.st_size);
		}
		if (fd >= 0)
			close(fd);
	}
	~File()
	{
		if (base)
			munmap(const_cast<char *>(base), bytes);
	}
	File(const File &) = delete;
	File &operator=(const File &) = delete;

	template <class T> bool get(uint64_t at, T &to) const
	{
		if (at > bytes || bytes - at < sizeof to)
			return false;
		memcpy(&to, base + at, sizeof to);
		return true;
	}
	std::string text(uint64_t at) const
	{
		return at < bytes ? std::string(base + at, strnlen(base + at, bytes - at)) : std::string();
	}

private:
	const char *base = nullptr;
	size_t bytes = 0;
};

struct Symbols {
	const File &file;
	Elf64_Shdr table{}, strings{};

	Elf64_Sym at(uint64_t i) const
	{
		Elf64_Sym s{};
		if (i < table.sh_size / sizeof s)
			file.get(table.sh_offset + i * sizeof s, s);
		return s;
	}
	std::string name(const Elf64_Sym &s) const { return s.st_name ? file.text(strings.sh_offset + s.st_name) : std::string(); }
	Elf64_Sym find(const char *wanted) const
	{
		for (uint64_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); i++) {
			Elf64_Sym s = at(i);
			if (s.st_shndx != SHN_UNDEF && name(s) == wanted)
				return s;
		}
		return {};
	}
};

} // namespace

static std::vector<Elf64_Shdr> sections(const File &file)
{
	std::vector<Elf64_Shdr> all;
	Elf64_Ehdr head;
	if (!file.get(0, head) || memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64)
		return all;
	for (unsigned i = 0; i < head.e_shnum; i++) {
		Elf64_Shdr s;
		if (file.get(head.e_shoff + uint64_t(i) * sizeof s, s))
			all.push_back(s);
	}
	return all;
}

/* The names of a table's entries; "" where the linker left none. */
static std::vector<std::string> entries(const File &file, const std::vector<Elf64_Shdr> &all, const Symbols &symbols, const Elf64_Sym &table)
{
	std::vector<std::string> names(std::min<uint64_t>(table.st_size / 8, 64));
	for (const Elf64_Shdr &s : all)
		for (uint64_t i = 0; s.sh_type == SHT_RELA && i < s.sh_size / sizeof(Elf64_Rela); i++) {
			Elf64_Rela r;
			if (!file.get(s.sh_offset + i * sizeof r, r) || ELF64_R_TYPE(r.r_info) != BY_NAME || r.r_offset < table.st_value)
				continue;
			uint64_t at = (r.r_offset - table.st_value) / 8;
			if (at < names.size())
				names[at] = symbols.name(symbols.at(ELF64_R_SYM(r.r_info)));
		}
	return names;
}

/* True if a mangled name is that of a member function: the name's length precedes it. */
static bool is_of(const std::string &mangled, const std::string &method)
{
	return mangled.find(std::to_string(method.size()) + method + "E") != std::string::npos;
}

std::string check_file(const std::string &path, bool &found)
{
	File file(path);
	std::vector<Elf64_Shdr> all = sections(file);
	found = false;
	auto dynamic = std::find_if(all.begin(), all.end(), [](const Elf64_Shdr &s) { return s.sh_type == SHT_DYNSYM; });
	if (dynamic == all.end() || dynamic->sh_link >= all.size())
		return {};
	Symbols symbols{file, *dynamic, all[dynamic->sh_link]};
	Elf64_Sym base = symbols.find(BASE_TABLE), ucx = symbols.find(UCX_TABLE);
	if (!base.st_size)
		return {};
	found = true;
	if (base.st_size != TABLE_BYTES)
		return path + ": the table of nixlBackendEngine has " + std::to_string(base.st_size / 8 - 2) + " functions, not " +
		       std::to_string(METHODS + 2);
	for (const Elf64_Sym &table : {base, ucx}) {
		std::vector<std::string> names = entries(file, all, symbols, table);
		for (size_t i = 0; table.st_size && i < METHODS; i++) {
			std::string name = BEFORE + i < names.size() ? names[BEFORE + i] : std::string();
			if (!name.empty() && name != "__cxa_pure_virtual" && !is_of(name, SLOTS[i]))
				return path + ": function " + std::to_string(i + 2) + " of a backend is " + name + ", not " + SLOTS[i];
		}
	}
	return {};
}

std::string check(const void *caller)
{
	Dl_info info;
	const char *trust = getenv("GDRFAB_NIXL_BORDER");
	if (trust && !strcmp(trust, "trust"))
		return {};
	if (!caller || !dladdr(caller, &info) || !info.dli_fname)
		return "the library that loads the plugin is unknown";
	std::string folder = info.dli_fname;
	folder = folder.substr(0, folder.rfind('/') + 1) + "plugins/";
	std::string wrong;
	bool any = false;
	if (DIR *dir = opendir(folder.c_str())) {
		for (dirent *e; !any && (e = readdir(dir));) {
			std::string name = e->d_name;
			if (name.rfind("libplugin_", 0) == 0 && name != std::string("libplugin_") + BACKEND + ".so")
				wrong = check_file(folder + name, any);
		}
		closedir(dir);
	}
	return any ? wrong : folder + " has no plugin of NIXL's own to compare with; GDRFAB_NIXL_BORDER=trust does without";
}

bool plausible(const InitParams *init)
{
	/* The string `type` has BACKEND as its value and points to its own buffer at the expected offset, and each
	 * number has a value that its field allows. */
	return init && init->type == BACKEND && init->type.data() == reinterpret_cast<const char *>(init) + 48 &&
	       init->agent.size() < 1 << 20 && init->sync >= 0 && init->sync < 16;
}

} // namespace border
