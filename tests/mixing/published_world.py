"""Small files of the shape in which TaobaoAd, Ali-CCP and KuaiRand are published."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

TAOBAO_PLACES = ("430548_1007", "430539_1007")
BEIJING_DAY_1 = 1_494_000_000  # 2017-05-06 00:00 in Beijing, so 2017-05-05 16:00 UTC
KUAI_APRIL_8 = 1_649_347_200_000  # 2022-04-08 00:00 in Beijing, milliseconds
DAY_S = 86_400


def write_taobaoad(folder: Path, *, begin: int = BEIJING_DAY_1, days: int = 8) -> None:
    """Unsorted logs; every tenth user and ad has no profile; trailing blank in a head; NULLs."""
    rng = np.random.default_rng(1)
    rows, users = 600, 40
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["user,time_stamp,adgroup_id,pid,nonclk,clk"]
    for _ in range(rows):
        click = int(rng.random() < 0.2)
        second = begin + int(rng.integers(0, days * DAY_S))
        place = TAOBAO_PLACES[int(rng.random() < 0.4)]
        user, ad = rng.integers(1, users + 1), rng.integers(1, 31)
        lines.append(f"{user},{second},{ad},{place},{1 - click},{click}")
    (folder / "raw_sample.csv").write_text("\n".join(lines) + "\n")
    ads = ["adgroup_id,cate_id,campaign_id,customer,brand,price"]
    ads += [
        f"{n},{n % 7 + 1},{n % 5 + 1},{n % 4 + 1},{'NULL' if n % 3 else n % 6 + 1},{n}.5"
        for n in range(1, 31)
        if n % 10
    ]
    (folder / "ad_feature.csv").write_text("\n".join(ads) + "\n")
    head = "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    profiles = [head + "shopping_level,occupation,new_user_class_level "]
    profiles += [
        f"{n},0,{n % 13},{n % 2 + 1},{n % 7},{'' if n % 2 else 1 + n % 3},3,0,{n % 5}"
        for n in range(1, users + 1)
        if n % 10
    ]
    (folder / "user_profile.csv").write_text("\n".join(profiles) + "\n")
    logged = ["user,time_stamp,btag,cate,brand"]
    for _ in range(2 * rows):
        earliest = max(begin - 14 * DAY_S, BEIJING_DAY_1 - 14 * DAY_S)
        second = int(rng.integers(earliest, begin + days * DAY_S))
        kind = rng.choice(["pv", "cart", "fav", "buy"])
        user, what = rng.integers(1, users + 1), rng.integers(1, 8)
        logged.append(f"{user},{second},{kind},{what},{what * 10}")
    logged.append(logged[-1])  # the published log has exact copies
    (folder / "behavior_log.csv.gz").write_bytes(gzip.compress("\n".join(logged).encode()))


def write_aliccp(folder: Path, sessions: int = 60, seed: int = 2) -> None:
    """No head lines; features as field \\x02 id \\x03 value, with \\x01 between them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for part in ("train", "test"):
        skeleton, common = [], []
        for session in range(sessions):
            index = f"{rng.integers(0, 2**63):016x}"
            user = int(rng.integers(1, 30))
            fields = [("101", user), ("109_14", 8), ("109_14", 9), ("121", 3), ("122", user % 13)]
            fields += [("124", 1 + user % 2), ("125", user % 7), ("127_14", 5), ("129", user % 4)]
            if session:  # the first session's common features are missing
                common.append(f"{index},{len(fields)},{_features(fields)}")
            for _ in range(int(rng.integers(1, 12))):
                number += 1
                click = int(rng.random() < 0.3)
                bought = int(click and rng.random() < 0.3) or int(number == 7)
                ad = int(rng.integers(1, 40))
                own = [("205", 9_000_000 + ad), ("206", ad % 5 + 100), ("207", ad % 9 + 200)]
                own += [("210", 7), ("210", 8), ("216", ad % 6 + 300), ("508", ad), ("853", user)]
                own += [("301", 9_351_665 + int(rng.integers(0, 3)))]
                text = f"{number},{click},{bought},{index},{len(own)},{_features(own)}"
                skeleton.append(text)
        (folder / f"sample_skeleton_{part}.csv").write_text("\n".join(skeleton) + "\n")
        (folder / f"common_features_{part}.csv").write_text("\n".join(common) + "\n")


def _features(fields: list[tuple[str, int]]) -> str:
    return "\x01".join(f"{field}\x02{number}\x031.0" for field, number in fields)


def write_kuairand(
    folder: Path, rows: int = 400, version: str = "1k", days: tuple[int, int] = (14, 31)
) -> None:
    """Three logs (one in two parts), pandas' floats for columns with holes, tags in quotes."""
    rng = np.random.default_rng(3)
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    head = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,"
    head += "is_forward,is_hate,long_view,play_time_ms,duration_ms,profile_stay_time,"
    head += "comment_stay_time,is_profile_enter,is_rand,tab"
    logs = {
        f"log_standard_4_08_to_4_21_{version}_part1": (0, days[0], 0),
        f"log_standard_4_08_to_4_21_{version}_part2": (0, days[0], 0),
        f"log_standard_4_22_to_5_08_{version}": (*days, 0),
        f"log_random_4_22_to_5_08_{version}": (*days, 1),
    }
    for name, (begin, end, random) in logs.items():
        lines = [head]
        for _ in range(rows):
            at = KUAI_APRIL_8 + int(rng.integers(begin * DAY_S, end * DAY_S)) * 1_000 + 7
            click = int(rng.random() < 0.3)
            view = int(click and rng.random() < 0.5)
            tab = int(rng.choice([0, 1, 2, 4, 6, 9], p=[0.2, 0.4, 0.1, 0.1, 0.1, 0.1]))
            who, what = rng.integers(0, 30), rng.integers(0, 60)
            lines.append(
                f"{who},{what},20220408,400,{at},{click},0,0,0,0,0,{view},20000,60000,0,0,0,"
                f"{random},{tab}"
            )
        (data / f"{name}.csv").write_text("\n".join(lines) + "\n")
    onehot = [f"onehot_feat{i}" for i in range(18)]
    ranges = "follow_user_num,follow_user_num_range,fans_user_num,fans_user_num_range,"
    ranges += "friend_user_num,friend_user_num_range,register_days,register_days_range,"
    users = ["user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,"]
    users[0] += ranges + ",".join(onehot)
    for n in range(29):
        codes = [
            f"{n % 3}.0" if i == 4 and n % 5 else "" if i == 4 else str(n % 2) for i in range(18)
        ]
        text = f'{n},full_active,0,0,1,5,"(0,10]",7,"[1,10)",0,0,3624,730+,'
        users.append(text + ",".join(codes))
    (data / f"user_features_{version}.csv").write_text("\n".join(users) + "\n")
    videos = ["video_id,author_id,video_type,upload_dt,upload_type,visible_status,"]
    videos[0] += "video_duration,server_width,server_height,music_id,music_type,tag"
    for n in range(55):
        tag = '"12,65"' if n % 2 else ""
        length = "" if n % 7 == 0 else "17200.0"
        kind = "AD" if n % 9 == 0 else "NORMAL"
        videos.append(f"{n},{n % 8},{kind},2020-07-08,ShortImport,1,{length},720,1280,9,4.0,{tag}")
    (data / f"video_features_basic_{version}.csv").write_text("\n".join(videos) + "\n")
